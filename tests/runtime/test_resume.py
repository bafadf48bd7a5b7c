"""A run that is gone on with applies what may change and refuses the rest by name; one job at a time has a folder."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from captures import capture
from processes import GlooPool

from meshwright.cluster import load_cluster
from meshwright.errors import MeshwrightError, RunError
from meshwright.models.reference import parse_reference
from meshwright.planner.plan import make_plan
from meshwright.runtime.job import progress
from meshwright.runtime.job.worker import Job, not_finite, train
from meshwright.runtime.state.lock import LOCK, release, take

MODEL = "gpt?layers=1&hidden=16&heads=2&ffn=32&vocab=128&seq=16"


def a_plan(folder: Path, batch: int) -> str:
    reference = parse_reference(MODEL)
    path = folder / f"plan-{batch}.json"
    make_plan(capture(*reference.meta(batch)), load_cluster("local:1"), model=str(reference)).save(path)
    return str(path)


def trained(rank: int, jobs: list[Job]) -> list[Any]:
    found: list[Any] = []
    for job in jobs:
        try:
            found.append(train(job)["losses"])
        except MeshwrightError as error:
            found.append(str(error))
    return found


def told(rank: int, first: Job, again: Job) -> str:
    train(first)
    with redirect_stdout(StringIO()) as shown:
        assert train(again)["saved"] is None
    return shown.getvalue()


def test_a_run_that_is_over_says_that_nothing_is_left(tmp_path: Path, ranks: Callable[[int], GlooPool]) -> None:
    first = Job(a_plan(tmp_path, 4), 2, 1e-2, 5, "", True, str(tmp_path / "saved"), resume="auto")
    (shown,) = ranks(1).run(told, first, replace(first, steps=1, quiet=False))
    assert "nothing is left to do: step 2 of 1; give more --steps to go on" in shown


def lines_of(rank: int, job: Job, silent_s: float) -> int:
    before, progress._SILENT_S = progress._SILENT_S, silent_s
    try:
        with redirect_stdout(StringIO()) as shown:
            train(job)
    finally:
        progress._SILENT_S = before
    return shown.getvalue().count("  loss ")


def test_a_long_run_shows_a_line_every_few_seconds(tmp_path: Path, ranks: Callable[[int], GlooPool]) -> None:
    job = Job(a_plan(tmp_path, 4), 30, 1e-2, 5, "", False)
    assert ranks(1).run(lines_of, job, 1e9) == [11]  # the first, and ten of all
    assert ranks(1).run(lines_of, job, 0.0) == [30]


def test_what_a_resumed_run_is_told_otherwise(tmp_path: Path, ranks: Callable[[int], GlooPool]) -> None:
    folder, plan, other = str(tmp_path / "saved"), a_plan(tmp_path, 4), a_plan(tmp_path, 2)
    (tmp_path / "text").write_text("another text, of more than sixteen characters " * 3)

    def job(steps: int, plan: str = plan, resume: str = "auto", **more: Any) -> Job:
        return Job(plan, steps, more.pop("lr", None), more.pop("seed", None), "", True, folder, resume=resume, **more)

    whole = Job(plan, 4, 1e-2, 5, "", True)
    first, second, seed, text, batch, rate, missing, alone = ranks(1).run(
        trained,
        [
            job(2, lr=1e-2, seed=5),
            job(4),
            job(5, seed=6),
            job(5, data=str(tmp_path / "text")),
            job(5, plan=other),
            job(6, lr=1e-30),
            Job(plan, 1, None, None, "", True, str(tmp_path / "none"), resume="must"),
            whole,
        ],
    )[0]
    assert (len(first), len(second)) == (2, 4), "auto starts anew, and then goes on"
    assert second == alone, "with the learning rate and the seed of the run that it goes on with"
    assert "--seed 6 with --resume from" in seed
    assert "expected: 5, as when it was saved" in seed
    assert "--data of another text with --resume" in text
    assert "--global-batch of 2 with --resume" in batch
    assert rate[:4] == second
    assert "has no checkpoint" in missing or "is not there" in missing


def test_a_loss_that_is_not_finite_names_the_samples_of_its_batch() -> None:
    assert "look at samples 4, 7 of the data" in str(not_finite(float("nan"), 3, [4, 7]))
    assert "samples 0, 1, " in (told := str(not_finite(float("inf"), 3, range(100))))
    assert "15, ... of" in told


def holder(folder: Path) -> int:
    """A process that has the lock."""
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child == 0:
        try:
            take(folder)
            (folder / "ready").touch()
            time.sleep(60)
        finally:
            os._exit(0)
    while not (folder / "ready").exists():
        time.sleep(0.01)
    return child


def test_a_second_job_on_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    other = holder(tmp_path)
    try:
        with pytest.raises(RunError, match=f"is in use by process {other} on "):
            take(tmp_path)
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    take(tmp_path)
    take(tmp_path)
    release(tmp_path)
    assert not (tmp_path / LOCK).exists()
    release(tmp_path)
