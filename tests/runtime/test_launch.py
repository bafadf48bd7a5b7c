"""Ranks are started together and ended together, whatever happens to one of them or to the launcher."""

from __future__ import annotations

import os
import signal
import socket
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters, c10d_rendezvous_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from meshwright.errors import RunError
from meshwright.runtime.job import elastic
from meshwright.runtime.job.elastic import _listen_where_asked, address_of
from meshwright.runtime.job.launch import LOOPBACK, _store, launch

RANK = """
import ctypes, os, signal, sys, time
from pathlib import Path
Path(sys.argv[1], os.environ["RANK"]).write_text(str(os.getpid()))
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(60)
if sys.argv[2] == "native":
    ctypes.PyDLL(None).sleep(60)  # holds the interpreter's lock, as an import of a large library does
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.05)
if os.environ["RANK"] == "1":
    sys.exit(3)
time.sleep(60)
"""


@pytest.fixture
def rank_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def wait_for(folder: Path, ranks: int) -> list[int]:
    deadline = time.monotonic() + 60
    files = [folder / str(rank) for rank in range(ranks)]
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(file.read_text()) for file in files]


def let_go(folder: Path) -> list[int]:
    ranks = wait_for(folder, 2)
    (folder / "go").touch()
    return ranks


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_failing_rank_is_named_and_ends_the_rest(rank_module: Path) -> None:
    with ThreadPoolExecutor(1) as watcher:  # both ranks are seen alive before one of them fails
        ranks = watcher.submit(let_go, rank_module)
        with pytest.raises(RunError, match="rank 1 of 2 ended with code 3"):
            launch("a_rank", [str(rank_module), "plain"], 2)
    assert not any(alive(process) for process in ranks.result())


def launcher(folder: Path, what: str, *, ignored: tuple[int, ...] = (), timeout_s: float = 600.0) -> int:
    """A launcher of two ranks, in a copy of this process: importing torch again takes seconds."""
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        errors = os.open(folder / "errors", os.O_WRONLY | os.O_CREAT)
        os.dup2(errors, 2)
        launch("a_rank", [str(folder), what], 2, timeout_s)
    except KeyboardInterrupt:
        code = 130
    except RunError as error:
        os.write(2, str(error).encode())
        code = 2
    finally:
        os._exit(code)


def end_of(process: int, within_s: float) -> int:
    """Its exit code."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise AssertionError(f"the launcher has not ended after {within_s} s")


def check_gone(ranks: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(alive(process) for process in ranks):
        assert time.monotonic() < deadline, "a rank is still running 10 s after its launcher"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (signal.SIGTERM, "native"),
        (signal.SIGKILL, "plain"),
        pytest.param(signal.SIGTERM, "plain", marks=pytest.mark.full),
        pytest.param(signal.SIGKILL, "native", marks=pytest.mark.full),
    ],
)
def test_no_rank_outlives_its_launcher(rank_module: Path, how: signal.Signals, what: str) -> None:
    started = launcher(rank_module, what)
    ranks = wait_for(rank_module, 2)
    os.kill(started, how)
    assert end_of(started, 10) == (130 if how == signal.SIGTERM else -signal.SIGKILL)
    check_gone(ranks)


@pytest.mark.parametrize(
    ("how", "ignored"),
    [
        pytest.param(signal.SIGINT, (signal.SIGINT,), id="ignored"),
        pytest.param(signal.SIGHUP, (), id="hung up"),
        pytest.param(signal.SIGINT, (), id="heard", marks=pytest.mark.full),
        pytest.param(signal.SIGHUP, (signal.SIGINT,), id="hung up, the other ignored", marks=pytest.mark.full),
    ],
)
def test_ranks_that_start_leave_quietly(rank_module: Path, how: signal.Signals, ignored: tuple[int, ...]) -> None:
    """Also where the shell ignores Ctrl-C, as it does for what runs in the background; at once, whatever ranks do."""
    started = launcher(rank_module, "plain", ignored=ignored)
    if how == signal.SIGINT:
        wait_for(rank_module, 1)
    else:
        time.sleep(0.05)
    os.kill(started, how)
    assert end_of(started, 10) in (130, -how), "before it listens the signal ends it"
    assert (rank_module / "errors").read_text() == ""


def test_what_nohup_keeps_away_does_not_end_a_job(rank_module: Path) -> None:
    started = launcher(rank_module, "plain", ignored=(signal.SIGHUP,))
    wait_for(rank_module, 2)
    os.kill(started, signal.SIGHUP)
    time.sleep(0.5)
    assert os.waitpid(started, os.WNOHANG) == (0, 0)
    os.kill(started, signal.SIGTERM)
    assert end_of(started, 10) == 130


def test_a_second_ctrl_c_ends_at_once(rank_module: Path) -> None:
    started = launcher(rank_module, "deaf")
    ranks = wait_for(rank_module, 2)
    time.sleep(0.3)
    os.kill(started, signal.SIGINT)
    time.sleep(0.5)
    assert os.waitpid(started, os.WNOHANG) == (0, 0), "the ranks may be saving"
    os.kill(started, signal.SIGINT)
    assert end_of(started, 5) == 130
    check_gone(ranks)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_rank_that_stands_still_is_named(rank_module: Path, rank: int) -> None:
    started = launcher(rank_module, "plain", timeout_s=3)
    ranks = wait_for(rank_module, 2)
    os.kill(ranks[rank], signal.SIGSTOP)
    assert end_of(started, 13) == 2
    error = (rank_module / "errors").read_text()
    assert f"rank {rank} of 2 on {socket.gethostname()} stands still" in error
    assert "since `starting`" in error
    check_gone(ranks)


def check_on_loopback(port: int) -> None:
    held = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if f":{port:04X} " in line]
    assert "0100007F:" + f"{port:04X}" in held
    assert not any(address.startswith("00000000") for address in held)
    every = Path("/proc/net/tcp6")
    assert not every.exists() or f":{port:04X} 0000" not in every.read_text()


def test_the_jobs_store_is_reached_from_this_machine_alone() -> None:
    with _store() as port:
        check_on_loopback(port)


def test_torchruns_stores_are_reached_from_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is told that there is one host: that at which hosts meet, and that of the ranks."""
    for module in (dist, c10d_rendezvous_backend):
        monkeypatch.setattr(module, "TCPStore", dist.TCPStore)  # put back
    _listen_where_asked(alone=True)
    parameters = RendezvousParameters("c10d", "localhost:0", "run", 1, 1, LOOPBACK)
    backend, store = c10d_rendezvous_backend.create_backend(parameters)
    check_on_loopback(store.port)
    handler = DynamicRendezvousHandler.from_backend("run", store, backend, 1, 1, LOOPBACK)
    met = handler.next_rendezvous().bootstrap_store_info
    assert met.master_addr == LOOPBACK
    check_on_loopback(met.master_port)
    assert handler.shutdown()


def test_torchruns_store_of_several_hosts_listens_where_they_look_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dist, c10d_rendezvous_backend):
        monkeypatch.setattr(module, "TCPStore", dist.TCPStore)  # put back
    monkeypatch.setattr(elastic, "address_of", lambda name: "127.0.0.2")  # as if of a network
    _listen_where_asked(alone=False)
    stores = [dist.TCPStore("127.0.0.2", 0, is_master=True, wait_for_workers=False) for _ in range(3)]
    for store in stores:
        store.set("key", "value")
    # Another process may happen to listen at the loopback on the number of one.
    assert not all(_answers(store.port) for store in stores)


def _answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (["10.77.0.1"], "10.77.0.1"),
        (["fd00::7"], "fd00::7"),
        (["127.0.1.1"], None),  # a name that this host alone takes for itself
        (["10.77.0.1", "192.168.0.1"], None),  # others may look at either
    ],
)
def test_the_address_at_which_hosts_meet(
    found: list[str], address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (one, 0)) for one in found])
    assert address_of("host0") == address


def test_a_name_that_is_not_known_has_no_address() -> None:
    assert address_of("no.such.host.invalid") is None
