"""An agent of torchrun ends a rank that stands still, and names it; ranks that go on it leaves alone."""

from __future__ import annotations

import os
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.runtime.job import rank_watch
from meshwright.runtime.job.rank_watch import RankWatch, timeout_of
from meshwright.runtime.job.tether import BEAT_FOLDER, end_with_parent

TIMEOUT_S = 1.2


@pytest.fixture
def children() -> Iterator[list[int]]:
    started: list[int] = []
    yield started
    for process in started:
        if os.waitpid(process, os.WNOHANG) == (0, 0):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def rank(folder: Path, number: int, beats: bool) -> int:
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.environ |= {"RANK": str(number), BEAT_FOLDER: str(folder)}
        if beats:
            end_with_parent()
        time.sleep(60)
        os._exit(0)
    return child


def test_who_stands_still_is_ended(
    tmp_path: Path, children: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rank_watch, "LATER_S", 0.0)
    children += [rank(tmp_path, number, beats) for number, beats in enumerate((True, True, False, False))]
    watch = RankWatch(tmp_path, TIMEOUT_S)
    while len(list(tmp_path.glob("[0-9]*"))) < 2:
        time.sleep(0.02)
    watch.look()
    for number in (1, 3):
        os.kill(children[number], signal.SIGSTOP)
    deadline = time.monotonic() + 20
    while len(watch.named) < 2 and time.monotonic() < deadline:
        watch.look()
        time.sleep(0.1)
    ended = [False] * 4
    while sum(ended) < 2 and time.monotonic() < deadline + 20:  # a process that was killed needs a moment to end
        ended = [done or os.waitpid(process, os.WNOHANG)[0] != 0 for done, process in zip(ended, children, strict=True)]
        time.sleep(0.02)
    assert ended == [False, True, False, True]
    assert f"rank 1 on {socket.gethostname()} stands still" in capfd.readouterr().err
    children[:] = [children[0], children[2]]


def test_a_pause_of_the_agent_is_no_ranks_delay(tmp_path: Path, children: list[int]) -> None:
    children.append(rank(tmp_path, 0, beats=True))
    watch = RankWatch(tmp_path, 0.0)
    watch.look()
    watch._heard[children[0]].since_s -= 100
    watch.look(paused_s=100.0)
    assert watch.named == []


def test_the_time_is_that_of_the_command_line() -> None:
    assert timeout_of(["torchrun", "-m", "meshwright", "train", "--timeout", "15"], 600) == 15
    assert timeout_of(["train", "--timeout=7.5"], 600) == 7.5
    assert timeout_of(["train", "--timeout"], 600) == 600
