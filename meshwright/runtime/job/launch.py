"""Local processes for a run: started together, watched together, ended together.

The launcher keeps the job's store, on the loopback interface: no rank that stands still takes it away from the
others. Ranks tell it where they are twice a second (`tether`); one that says nothing for too long is named.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from meshwright.errors import RunError
from meshwright.runtime.job.tether import BEATS, LAUNCHER, STOPS
from meshwright.runtime.seal import KEY

GRACE_S = 2.0
"""How long ranks may take to leave once one of them has failed."""
SAVING_S = 120.0
"""How long ranks may take to save and leave after Ctrl-C."""
SILENT_S = 30.0
"""After Ctrl-C, how long a rank may say nothing, as one does that writes much at once; it would not save."""
STILL_S = 3.0
"""How long a rank has said nothing that stands still, where others gave up waiting."""
LATER_S = 2.0
"""How much longer than the ranks the launcher waits: they know more."""
POLL_S = 0.05
LOOPBACK = "127.0.0.1"

_KEY = secrets.token_hex(16)
"""What the ranks of a job sign with."""

LOST = 4
"""The exit code of a rank whose peers are gone: not the one to blame."""
LATE = 3
TOLD = (2, LATE)
"""Exit codes of a rank that has said why it ended: it was refused something, or has waited too long."""


class FailedError(RunError):
    """Ranks ended, or stood still. ranks: those that are lost, where a job without them could go on."""

    ranks: tuple[int, ...] = ()


class ToldError(FailedError):
    """A rank ended with a message of its own: no other is needed."""


@dataclass(slots=True)
class _Rank:
    """A started rank, and what it last said of itself."""

    process: subprocess.Popen[bytes]
    pipe: int
    place: str = "starting"
    heard_s: float = field(default_factory=time.monotonic)

    def listen(self) -> None:
        with suppress(BlockingIOError):
            while read := os.read(self.pipe, 1 << 16):
                self.heard_s = time.monotonic()
                self.place = read.decode(errors="replace").rstrip("\n").rpartition("\n")[2]

    def kill(self) -> None:
        """The rank and what it started: each has a session of its own."""
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.pipe)


class _Asked:
    """How often the job was asked to end."""

    count = 0

    def ask(self, number: int, frame: object) -> None:
        self.count += 1


def launch(
    module: str,
    arguments: Sequence[str],
    processes: int,
    timeout_s: float = 600.0,
    leave: Callable[[], bool] = lambda: False,
) -> bool:
    """`python -m module arguments...` on each of n ranks, with torchrun's environment; the first failure ends all.

    SIGINT, SIGTERM and SIGHUP are handed on to the ranks, which may save before they leave; KeyboardInterrupt is
    raised when they have. A second one ends them at once. A rank that says nothing for timeout_s ends all. Once leave()
    is true, which is asked all the time, the ranks are told to save and leave; returns whether they were.
    """
    ranks: list[_Rank] = []
    with _listening() as asked, _store() as port:
        try:
            for rank in range(processes):
                if not asked.count:
                    ranks.append(_start(module, arguments, rank, processes, port))
            _watch(ranks, asked, timeout_s, leave)
        except _AskedError:
            _hand_on(ranks, asked)
            if asked.count:
                raise KeyboardInterrupt from None
            return True
        finally:
            for one in ranks:
                one.kill()
    return False


class _AskedError(Exception):
    """The job is to end."""


@contextmanager
def _listening() -> Iterator[_Asked]:
    """Signals that end a job are counted; those that `nohup` keeps away stay away."""
    asked = _Asked()
    with _handled_by(asked.ask):
        yield asked


@contextmanager
def stoppable() -> Iterator[None]:
    """Before ranks are started: signals that end a job are Ctrl-C, whether the shell ignores it or not."""

    def interrupt(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    kept_away = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    before = {number: signal.signal(number, handler) for number in STOPS if number != signal.SIGHUP or not kept_away}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


@contextmanager
def _store() -> Iterator[int]:
    """The job's store, reached from this machine alone; its port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port, handle = listener()
    held = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=handle)
    try:
        yield port
    finally:
        del held


def listener(port: int = 0, address: str = LOOPBACK) -> tuple[int, int]:
    """Reached at this address alone, from this machine unless another is given: its port, and the handle of a socket
    for a store."""
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((address, port))
    found.listen(1024)
    return found.getsockname()[1], found.detach()


def on_loopback() -> dict[str, str]:
    """What tells ranks of one machine to listen there alone."""
    if any(name == "lo" for _, name in socket.if_nameindex()):
        return {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return {}


def _hand_on(ranks: Sequence[_Rank], asked: _Asked) -> None:
    """Ask the ranks to end, and wait until they have saved."""
    if asked.count == 1:
        print("ending after this step (Ctrl-C again: at once)", file=sys.stderr, flush=True)
    for rank in ranks:
        with suppress(ProcessLookupError):
            rank.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + SAVING_S
    while any(rank.process.poll() is None for rank in ranks) and time.monotonic() < deadline and asked.count < 2:
        for rank in ranks:
            rank.listen()
        if any(rank.process.poll() not in (None, 0) for rank in ranks):
            deadline = min(deadline, time.monotonic() + GRACE_S)  # one failed: the rest would wait for it
        if any(rank.process.poll() is None and time.monotonic() - rank.heard_s > SILENT_S for rank in ranks):
            return
        time.sleep(POLL_S)


def _start(module: str, arguments: Sequence[str], rank: int, processes: int, port: int) -> _Rank:
    heard, told = os.pipe()
    os.set_blocking(heard, False)
    command = [sys.executable, "-m", "meshwright.runtime.job.rank", module, *arguments]
    # Signals wait until the rank has its handlers. A session of its own: the terminal's Ctrl-C reaches the launcher
    # alone, which hands it on once.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        environment = _environment(rank, processes, port) | {BEATS: str(told)}
        process = subprocess.Popen(command, env=environment, start_new_session=True, pass_fds=[told])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(told)
    return _Rank(process, heard)


def _environment(rank: int, processes: int, port: int) -> dict[str, str]:
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        LAUNCHER: str(os.getpid()),
    }
    environment.setdefault(KEY, _KEY)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    return environment | on_loopback()


def _watch(ranks: Sequence[_Rank], asked: _Asked, timeout_s: float, leave: Callable[[], bool]) -> None:
    """Until all have ended well."""
    looked_s = time.monotonic()
    while True:
        if asked.count:
            raise _AskedError
        codes = [rank.process.poll() for rank in ranks]
        if any(code not in (None, 0) for code in codes):
            time.sleep(0.5)  # a rank that was killed takes others with it: find the one to blame
            raise _failure(ranks)
        if all(code == 0 for code in codes):
            return
        paused_s, looked_s = time.monotonic() - looked_s, time.monotonic()
        for rank in ranks:
            if paused_s > 1.0:  # it was this process that stood still
                rank.heard_s += paused_s
            rank.listen()
        _check_heard(ranks, timeout_s + LATER_S)
        if leave():
            raise _AskedError
        time.sleep(POLL_S)


def _failure(ranks: Sequence[_Rank]) -> FailedError:
    error = blamed({number: rank.process.poll() for number, rank in enumerate(ranks)}, f" of {len(ranks)}")
    if isinstance(error, ToldError) and LATE in [rank.process.poll() for rank in ranks]:
        still = [number for number, rank in enumerate(ranks) if time.monotonic() - rank.heard_s > STILL_S]
        error.ranks = tuple(still)
    return error


def _check_heard(ranks: Sequence[_Rank], most_s: float) -> None:
    now_s = time.monotonic()
    for number, rank in enumerate(ranks):
        if now_s - rank.heard_s > most_s and rank.process.poll() is None:
            error = FailedError(
                f"rank {number} of {len(ranks)} on {socket.gethostname()} stands still: nothing was heard of it for "
                f"{now_s - rank.heard_s:.0f} s, since `{rank.place}`",
                "every rank to go on",
                "see what stopped it; --timeout sets how long others wait",
            )
            error.ranks = (number,)
            raise error


def blamed(codes: Mapping[int, int | None], of: str = "") -> FailedError:
    """By the exit codes of ranks, the one that is to blame. of: ` of 4`, where that is known."""
    failed = [(rank, code) for rank, code in codes.items() if code not in (None, 0)]
    rank, code = min(failed, key=lambda found: (found[1] == LOST, (found[1] or 0) > 0, found[0]))
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
    kind = ToldError if code in TOLD else FailedError
    error = kind(f"rank {rank}{of} {how}", "every rank to finish", "see its message above, if it left one")
    if code is not None and code < 0:
        error.ranks = tuple(number for number, found in failed if found == code)
    return error
