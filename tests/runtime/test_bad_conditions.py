"""A disk that is full while a checkpoint is written, and a clock that jumps: nothing complete is lost, nobody hangs."""

from __future__ import annotations

import ast
import resource
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from small_models import small_model

import meshwright
from meshwright.cluster import load_cluster
from meshwright.errors import MeshwrightError
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.runtime.state.folder import complete_ones

DAY_S = 86_400.0
ROOM = 200_000
"""Less than a rank's part of a checkpoint, more than the file through which the test's ranks meet."""


@pytest.fixture(scope="module")
def plan_json() -> bytes:
    return make_plan(capture(*small_model("gpt")), load_cluster("local:2"), pins=("zero=3",)).to_json()


def saved_on_a_full_disk(rank: int, plan_json: bytes, folder: str, full: int) -> dict[str, Any]:
    """Three saves; during the second one, rank `full` may write no more."""
    import meshwright as mw

    plan = Plan.from_json(plan_json)
    model, batch = small_model("gpt")
    trainer = mw.parallelize(model, plan)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    errors: list[str] = []
    for number in range(3):
        trainer.step(batch, global_batch=True)
        optimizer.step()
        if number == 1 and rank == full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, limits[1]))
        try:
            mw.save(trainer, optimizer, folder)
        except MeshwrightError as error:
            errors.append(f"{number}: {error}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    weights = [parameter.detach().to_local().clone() for parameter in trainer.parameters()]  # type: ignore[attr-defined]
    with torch.no_grad():
        for parameter in trainer.parameters():
            parameter.zero_()
    found = mw.load(trainer, optimizer, folder)
    same = all(torch.equal(a, b.detach().to_local()) for a, b in zip(weights, trainer.parameters(), strict=True))  # type: ignore[attr-defined]
    return {"errors": errors, "step": found.step, "same": same}


@pytest.mark.parametrize("full", [1, pytest.param(0, marks=pytest.mark.full)])
def test_a_disk_that_is_full_costs_the_save_alone(
    tmp_path: Path, ranks: Callable[[int], GlooPool], plan_json: bytes, full: int
) -> None:
    found = ranks(2).run(saved_on_a_full_disk, plan_json, str(tmp_path), full)
    for one in found:
        assert len(one["errors"]) == 1
        assert one["errors"][0].startswith(f"1: rank {full} could not: ")
        assert f"{tmp_path} to have room and be written" in one["errors"][0]
        assert (one["step"], one["same"]) == (3, True)
    assert [path.name for path in complete_ones(tmp_path)] == ["step-000003", "step-000001"]
    assert not list(tmp_path.glob(".saving-*"))


def stepped_while_clocks_jump(rank: int, plan_json: bytes) -> list[float]:
    import meshwright as mw

    model, batch = small_model("gpt")
    trainer = mw.parallelize(model, Plan.from_json(plan_json), timeout_s=6.0)
    told, jumps = time.time, cycle((DAY_S, -DAY_S, 0.0))
    time.time = lambda: told() + next(jumps)
    try:
        return [trainer.step(batch, global_batch=True).item() for _ in range(3)]
    finally:
        time.time = told


def test_clocks_that_jump_are_not_read(ranks: Callable[[int], GlooPool], plan_json: bytes) -> None:
    """Ranks wait by clocks that only go on; no deadline or age is taken from the time of day."""
    found = ranks(2).run(stepped_while_clocks_jump, plan_json)
    assert found[0] == found[1]
    readers = []
    for path in (Path(meshwright.__file__).parent / "runtime").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "datetime.now", "time.time_ns"):
                readers.append(f"{path.name}:{node.lineno}")
    assert readers == []
