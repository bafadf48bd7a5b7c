"""Local processes for a run: started together, watched together, ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from meshwright.errors import RunError

GRACE_S = 5.0
SAVING_S = 120.0
"""How long ranks may take to save and leave after Ctrl-C."""

LOST = 4
"""The exit code of a rank whose peers are gone: not the one to blame."""


TOLD = (2, 3)
"""Exit codes of a rank that has said why it ended: it was refused something, or has waited too long."""


class ToldError(RunError):
    """A rank ended with a message of its own: no other is needed."""


def launch(module: str, arguments: Sequence[str], processes: int) -> None:
    """`python -m module arguments...` on each of n ranks, with torchrun's environment; the first failure ends all.

    Ctrl-C, or a polite end by others, is handed on to the ranks, which may save before they leave.
    """
    port = _free_port()
    before = signal.signal(signal.SIGTERM, _interrupt)
    children = [_start(module, arguments, rank, processes, port) for rank in range(processes)]
    try:
        _watch(children)
    except KeyboardInterrupt:
        _hand_on(children)
        raise
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
        _reap(children)
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> None:
    """A polite end (timeout, a scheduler) is treated like Ctrl-C: the ranks go too."""
    raise KeyboardInterrupt


def _hand_on(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
    deadline = time.monotonic() + SAVING_S
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        if any(child.poll() not in (None, 0) for child in children):
            return  # one failed: the rest would wait for it
        time.sleep(0.05)


def end_with_parent() -> None:
    """Called on a rank: it ends when the launcher is gone, even if that was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _start(module: str, arguments: Sequence[str], rank: int, processes: int, port: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    # A session of their own: the terminal's Ctrl-C reaches the launcher alone, which hands it on once.
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment, start_new_session=True)


def _watch(children: list[subprocess.Popen[bytes]]) -> None:
    while True:
        codes = [child.poll() for child in children]
        if any(code not in (None, 0) for code in codes):
            time.sleep(0.5)  # a rank that was killed takes others with it: find the one to blame
            raise blamed({rank: child.poll() for rank, child in enumerate(children)}, f" of {len(children)}")
        if all(code == 0 for code in codes):
            return
        time.sleep(0.05)


def blamed(codes: Mapping[int, int | None], of: str = "") -> RunError:
    """By the exit codes of ranks, the one that is to blame. of: ` of 4`, where that is known."""
    failed = [(rank, code) for rank, code in codes.items() if code not in (None, 0)]
    rank, code = min(failed, key=lambda found: (found[1] == LOST, (found[1] or 0) > 0, found[0]))
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
    return (ToldError if code in TOLD else RunError)(
        f"rank {rank}{of} {how}", "every rank to finish", "see its message above, if it left one"
    )


def _reap(children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + GRACE_S
    for child in children:
        try:
            child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
