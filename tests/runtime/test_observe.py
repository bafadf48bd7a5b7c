"""A run is watched: losses that jump are told with their batch, and so is a rank that the others wait for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from captures import capture
from processes import GlooPool

from meshwright.cluster import load_cluster
from meshwright.models.reference import parse_reference
from meshwright.planner.plan import make_plan
from meshwright.runtime.job import observe, worker
from meshwright.runtime.job.observe import Losses
from meshwright.runtime.job.progress import Progress
from meshwright.runtime.state.loader import Loader

MODEL = "gpt?layers=1&hidden=16&heads=2&ffn=32&vocab=128&seq=16"
SLEEP_S = 0.3
"""Much longer than a step takes, also on a machine that is busy."""


def test_a_spike_is_told_with_its_step_and_batch() -> None:
    random, losses = Random(0), Losses()
    falling = [4 * math.exp(-step / 40) + 1 + random.gauss(0, 0.05) for step in range(200)]
    assert not any(losses.spike(step, loss, (step,)) for step, loss in enumerate(falling, 1))
    assert losses.spike(201, 1.3, (1,)) is None, "within what is usual"
    for step in (202, 203):  # one does not hide the next
        found = losses.spike(step, 3.0, range(40))
        assert found is not None
        assert f"the loss is 3 at step {step}, 1.0" in str(found)
        assert "its batch: samples 0, 1, 2" in str(found)
        assert "15, ... of the data" in str(found)
    assert losses.spike(204, 1.0, (1,)) is None


def test_a_loss_that_is_not_finite_is_told_from_the_first_step_on() -> None:
    losses = Losses()
    for number in (math.nan, math.inf):
        assert f"the loss is {number} at step 1; its batch: samples 4, 7" in str(losses.spike(1, number, (4, 7)))
    assert losses.spike(2, 1e9, (1,)) is None, "nothing is known of what is usual"


def trained(rank: int, job: worker.Job, slow: int | None) -> dict[str, Any]:
    """Rank `slow` takes long to read its batch."""
    read = Loader.__iter__

    def slowly(self: Loader) -> Iterator[Any]:
        for batch in read(self):
            if rank == slow:
                time.sleep(SLEEP_S)
            yield batch

    told: list[str] = []
    observe.EVERY, Loader.__iter__ = 5, slowly  # type: ignore[method-assign]
    warn = worker.Progress._warn
    worker.Progress._warn = lambda self, text: told.append(text) if text else None  # type: ignore[method-assign]
    try:
        return worker.train(job) | {"told": told}
    finally:
        observe.EVERY, Loader.__iter__, worker.Progress._warn = 50, read, warn  # type: ignore[method-assign]


@pytest.mark.parametrize("slow", [1, pytest.param(0, marks=pytest.mark.full)])
def test_a_slow_rank_is_named_once(tmp_path: Path, ranks: Callable[[int], GlooPool], slow: int) -> None:
    reference, path = parse_reference(MODEL), tmp_path / "plan.json"
    program = capture(*reference.meta(4))
    make_plan(program, load_cluster("local:2"), model=str(reference), pins=("dp=2",)).save(path)
    found = ranks(2).run(trained, worker.Job(str(path), 10, 1e-3, 0, "", True), slow)
    assert found[0]["told"] == found[1]["told"]
    assert len(found[0]["told"]) == 1, found[0]["told"]
    assert f"rank {slow} on " in found[0]["told"][0]
    assert "is slow: the other waits for it" in found[0]["told"][0]
    assert found[0]["step_s"] > SLEEP_S


def test_saves_that_follow_quickly_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress.__new__(Progress)
    progress.shown, progress.live, progress.saved_s, progress.unsaid = True, False, None, 0
    for step in range(3):
        progress.saved(Path(f"run/step-{step}"))
    assert capsys.readouterr().out == "saved run/step-0\n"
    assert progress.saved_s is not None
    progress.saved_s -= 20
    progress.saved(Path("run/step-3"))
    assert capsys.readouterr().out == "saved run/step-3 (2 more since the last line)\n"
