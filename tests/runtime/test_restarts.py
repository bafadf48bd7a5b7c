"""`--max-restarts`: a job that loses ranks goes on with fewer, and grows back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.errors import RunError
from meshwright.runtime.job import restarts
from meshwright.runtime.job.restarts import Restarts

MODEL = "gpt?layers=1&hidden=24&heads=6&ffn=48&vocab=128&seq=16"
PATIENCE_S = 300


def plan(world: int) -> Any:
    return SimpleNamespace(world_size=world)


def saved(folder: Path, step: int) -> None:
    """What a complete checkpoint is known by."""
    (folder / f"step-{step:06d}").mkdir()
    (folder / f"step-{step:06d}" / "meshwright.json").write_text("{}")


def test_the_plan_for_one_rank_less_is_made_before_it_is_needed(tmp_path: Path) -> None:
    made: list[int] = []
    job = Restarts(plan(4), lambda world: made.append(world) or plan(world), tmp_path)
    job.prepare()
    assert made == [3]
    assert job.lose(1).world_size == 3
    assert made == [3]
    assert job.lose(2).world_size == 1
    assert job.lose(1).world_size == 1, "one rank goes on alone, started again"


def test_where_there_is_no_plan_for_fewer_the_same_runs_again(tmp_path: Path) -> None:
    def refuse(world: int) -> Any:
        raise RunError("no", "yes", "more")

    for make in (None, refuse):
        job = Restarts(plan(2), make, tmp_path)
        job.prepare()
        assert job.lose(1) is job.full
        assert not job.may_grow()


def test_it_grows_back_once_it_has_saved_and_stays_small_where_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "LOOK_S", -1.0)
    job = Restarts(plan(3), plan, tmp_path)
    job.begin()
    assert not job.may_grow(), "it has lost nothing"
    job.lose(1)
    job.begin()
    assert not job.may_grow(), "it has saved nothing"
    saved(tmp_path, 1)
    assert job.may_grow()
    assert job.grow() is job.full
    job.begin()
    saved(tmp_path, 2)
    job.lose(1)  # much later: the full size had saved
    job.begin()
    saved(tmp_path, 3)
    assert job.may_grow()
    job.grow()
    job.begin()
    assert job.lose(1).world_size == 2  # at once
    job.begin()
    saved(tmp_path, 4)
    assert not job.may_grow()


def test_it_grows_back_after_a_while_where_it_seldom_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "LOOK_S", -1.0)
    job = Restarts(plan(3), plan, tmp_path)
    job.lose(1)
    job.begin()
    assert not job.may_grow()
    monkeypatch.setattr(restarts, "GROW_S", -1.0)
    assert job.may_grow()


def _started(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "meshwright",
        "train",
        MODEL,
        "--global-batch",
        "6",
        "--steps",
        "30",
        "--keep",
        "0",
    ]
    command += ["--keep", "0", "--checkpoint-dir", str(folder), "--json", str(folder.with_suffix(".json")), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _ranks_of(launcher: int) -> list[int]:
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    return [int(word) for word in children.read_text().split()] if children.exists() else []


@pytest.mark.full
def test_a_killed_rank_a_smaller_job_and_the_full_size_again(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with _started(whole, "--nproc", "3") as run:
        assert run.wait(PATIENCE_S) == 0, run.stderr.read() if run.stderr else ""
    with _started(cut, "--nproc", "3", "--every", "4", "--max-restarts", "1") as run:
        deadline = time.monotonic() + PATIENCE_S
        while not (cut / "step-000004").exists():
            assert run.poll() is None, run.stderr.read() if run.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ranks = _ranks_of(run.pid)
        assert len(ranks) == 3
        os.kill(ranks[1], signal.SIGKILL)
        out, error = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, error
    told = [line for line in error.splitlines() if line.startswith("meshwright:")]
    assert told == [
        "meshwright: rank 1 of 3 was killed by signal 9; going on with 2 processes",
        "meshwright: going on with 3 processes",
    ]
    sizes = [json.loads((path / "meshwright.json").read_text())["world_size"] for path in sorted(cut.glob("step-*"))]
    assert sizes[0] == 3
    assert sizes[-1] == 3
    assert 2 in sizes
    losses = [json.loads(folder.with_suffix(".json").read_text())["losses"] for folder in (whole, cut)]
    assert len(losses[1]) == 30
    assert losses[1] == pytest.approx(losses[0], rel=2e-4)
    assert "going on from" in out
