"""A rank that stands still is missed by the others, whoever holds the store; they end, and say which it was."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from processes import forked

from meshwright.runtime.fail import is_lost
from meshwright.runtime.presence import LATE, Presence
from meshwright.runtime.seal import KEY, opened, sealed
from meshwright.runtime.watch import WatchedTransport

TIMEOUT_S = 5.0


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
    return found


def rank(number: int, world: int, where: int, folder: Path, keys: list[str]) -> int:
    """A process that has a heartbeat and nothing else, in a copy of this one; rank 0 holds the store."""
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child:
        return child
    try:
        os.environ[KEY] = keys[number]
        sys.stderr = open(folder / f"errors-{number}", "w")  # noqa: SIM115
        limit = timedelta(seconds=30)
        store = dist.TCPStore("127.0.0.1", where, is_master=number == 0, wait_for_workers=False, timeout=limit)
        held = Presence(store, number, world, TIMEOUT_S, beats=True, held_by=0)
        held.phase = "all_reduce over dp"
        while not (folder / "leave").exists():
            heard = sum(seen.place == held.phase for seen in held.seen.values())
            (folder / str(number)).write_text(str(heard))
            (folder / f"answered-{number}").write_text(str(held.answered_s))
            time.sleep(0.05)
        held._over.set()
        time.sleep(1.0)
    finally:
        os._exit(0)


def started(folder: Path, world: int, keys: list[str] | None = None, heard: int | None = None) -> list[int]:
    where = port()
    keys = keys or ["a key"] * world
    ranks = [rank(number, world, where, folder, keys) for number in range(world)]
    deadline = time.monotonic() + 60
    wanted = str(world - 1 if heard is None else heard)
    while not all((folder / str(n)).exists() and (folder / str(n)).read_text() == wanted for n in range(world)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return ranks


def code_of(process: int, within_s: float) -> int | None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


@pytest.mark.parametrize("stopped", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_rank_that_stands_still_is_named_with_its_host_and_op(tmp_path: Path, stopped: int) -> None:
    ranks = started(tmp_path, 3)
    os.kill(ranks[stopped], signal.SIGSTOP)
    codes = {n: code_of(ranks[n], TIMEOUT_S + 10) for n in range(3) if n != stopped}
    code_of(ranks[stopped], 0)
    assert LATE in codes.values()
    assert None not in codes.values(), "a rank still waits"
    told = "".join((tmp_path / f"errors-{n}").read_text() for n in codes)
    holds = ", which holds the job's store" if stopped == 0 else ""
    assert f"rank {stopped}{holds}: last heard of on {socket.gethostname()}, at `all_reduce over dp`" in told


@pytest.mark.full
def test_a_rank_that_has_come_to_its_end_is_not_missed(tmp_path: Path) -> None:
    ranks = started(tmp_path, 2)
    answered = (tmp_path / "answered-1").read_text()
    while (tmp_path / "answered-1").read_text() in (answered, ""):
        time.sleep(0.01)  # it asks the store again in a second; before that it comes to its end
    os.kill(ranks[0], signal.SIGSTOP)
    (tmp_path / "leave").touch()
    assert code_of(ranks[1], 10) == 0
    (tmp_path / "leave").unlink()
    os.kill(ranks[0], signal.SIGCONT)
    assert code_of(ranks[0], TIMEOUT_S + 2) is None, "it ends though nobody was lost"


@pytest.mark.full
def test_a_pause_of_the_process_itself_is_nobodys_delay(tmp_path: Path) -> None:
    ranks = started(tmp_path, 2)
    for process in ranks:
        os.kill(process, signal.SIGSTOP)
    time.sleep(TIMEOUT_S + 2)
    for process in ranks:
        os.kill(process, signal.SIGCONT)
    time.sleep(3)
    (tmp_path / "leave").touch()
    assert [code_of(process, 10) for process in ranks] == [0, 0]


def test_messages_without_the_jobs_key_are_not_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = started(tmp_path, 2, ["a key", "another"], heard=0)
    for process in ranks:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    monkeypatch.setenv(KEY, "a key")
    message = sealed("verdict", "over").encode()
    assert opened("verdict", message) == "over"
    assert opened("fault", message) is None
    assert opened("verdict", b"over") is None
    assert opened("verdict", b"\xff" * 64) is None
    monkeypatch.setenv(KEY, "another")
    assert opened("verdict", message) is None


def of_two_worlds(rank: int) -> tuple[bool, bool]:
    numbers = torch.zeros(1, dtype=torch.int64)
    first = WatchedTransport.shared(numbers, ["dp"], "lane")
    again = WatchedTransport.shared(numbers, ["dp"], "lane")
    assert first is not None
    assert again is not None
    same = first.group("dp") is again.group("dp")
    old = ref(first.group("dp"))
    del first, again
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    made = WatchedTransport.shared(numbers, ["dp"], "lane")
    assert made is not None
    made.all_reduce(torch.ones(2), "dp", "sum")
    return same, made.group("dp") is not old()


def test_groups_are_not_carried_over_to_another_world() -> None:
    assert forked(1, of_two_worlds) == [(True, True)]


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:51234", True),
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/buffer.cc] Application timeout caused pair closure", True),
        ("NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error, NCCL version 2.26.2\n"
         "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
         "Last error:\nsocketPollConnect: connect returned Connection refused", True),
        ("NCCL communicator was aborted on rank 1.", True),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)", True),
        ("NCCL error: invalid usage\nncclInvalidUsage: This usually reflects invalid usage", False),
        ("NCCL error: unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed: socket 1", False),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", False),
    ],
)  # fmt: skip
def test_which_errors_say_that_a_peer_is_gone(text: str, lost: bool) -> None:
    assert is_lost(RuntimeError(text)) is lost
    assert is_lost(dist.DistBackendError(text)) is lost
    assert is_lost(ValueError(text)) is False
