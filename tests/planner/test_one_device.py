"""On one device the plan is the fastest of all numbers of micro-batches, and its gap a bound on all of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cli.answer import recipes
from meshwright.cluster import load_cluster
from meshwright.cutting import even_cuts
from meshwright.explain.recipes import baselines
from meshwright.plan.units import show_bytes
from meshwright.planner.one_device import budget_bytes, room_bytes
from meshwright.planner.plan import make_plan

BATCH = 1024
ROUNDING = 1e-9


def squared(y: Tensor, x: Tensor) -> Tensor:
    return (y - x).square().mean()


@pytest.fixture(scope="module")
def program() -> Program:
    """Whose values fit a CPU's caches in small micro-batches alone."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(2)))
    return capture(model, (torch.randn(BATCH, 256),), loss=squared)


@pytest.mark.parametrize("compile", [False, True])
def test_no_number_of_micro_batches_is_faster_than_the_plan_or_its_bound(program: Program, compile: bool) -> None:
    cluster = load_cluster("local:1")
    plan = make_plan(program, cluster, compile=compile)
    made = plan.predicted
    pinned = [
        make_plan(program, cluster, pins=(f"microbatches={number}",), compile=compile).predicted.step_s
        for number in even_cuts(BATCH)
    ]
    assert made.step_s <= min(pinned) * (1 + ROUNDING)
    assert made.step_s * (1 - made.gap) <= min(pinned) * (1 + ROUNDING)
    assert compile or min(pinned) < 0.99 * pinned[0], "several micro-batches must be faster here"


def test_less_memory_is_no_faster_and_no_recipe_is(program: Program) -> None:
    cluster = load_cluster("local:1")
    free = make_plan(program, cluster).predicted
    others = [one.step_s for one in baselines(program, cluster)]
    assert all(step_s is not None and step_s >= free.step_s * (1 - ROUNDING) for step_s in others)
    whole = make_plan(program, cluster, pins=("microbatch=1",)).predicted.peak_bytes
    for share in (0.9, 0.7, 0.5):
        assert make_plan(program, cluster, memory_bytes=int(share * whole)).predicted.step_s >= free.step_s


def test_a_recipe_fits_where_the_plan_may(program: Program) -> None:
    """On a GPU: in the limit less what the allocator may lose, and the answer says so."""
    cluster, whole = load_cluster("4090:1"), ("microbatch=1",)
    kept = baselines(program, cluster, pins=whole)[0]
    assert kept.fits
    assert kept.peak_bytes
    plan = make_plan(program, cluster, memory_bytes=kept.peak_bytes, pins=whole)
    kept, *_ = found = baselines(program, cluster, memory_bytes=kept.peak_bytes, pins=whole)
    assert not kept.fits
    assert all(one.step_s >= plan.predicted.step_s for one in found if one.fits and one.step_s)
    room = budget_bytes(kept.peak_bytes or 0, cluster.devices[0])
    assert baselines(program, cluster, memory_bytes=room, pins=whole)[0].fits
    said = f"\nfits: at most {show_bytes(room_bytes(plan.memory_bytes, cluster.devices[0]) or 0)}, since the allocator"
    assert said in recipes(plan, found)
    assert "\nfits: " not in recipes(make_plan(program, load_cluster("local:1"), memory_bytes=room), found)
