"""Without a memory limit some of each device is left free, and the plan says so; a limit is taken at its word."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import meshwright as mw
from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import PlanError
from meshwright.explain.recommend import recommendation
from meshwright.plan import Plan
from meshwright.planner.effort import HEADROOM
from meshwright.planner.plan import make_plan

BATCH = {"input": torch.zeros(8, 64), "target": torch.zeros(8, 64)}


def model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(2)))


@cache
def program() -> Program:
    return capture(model(), BATCH, nn.functional.mse_loss)


def cluster_of(usable_bytes: int, devices: int = 2) -> Cluster:
    """Two processes whose devices hold so much."""
    found = load_cluster(f"local:{devices}")
    device = found.devices[0]
    small = replace(device, memory_bytes=usable_bytes + device.reserve_bytes)
    return replace(found, devices=(small,), name="small")


@pytest.mark.parametrize(
    ("pins", "few"), [(("mesh=2", "dp=2", "zero=0"), 3 << 15), pytest.param(("pp=2",), 1 << 16, marks=pytest.mark.full)]
)
def test_a_plan_that_fills_a_device_is_planned_by_its_limit_alone(pins: tuple[str, ...], few: int) -> None:
    """On devices that a plan just fills: found where the limit is given, refused in what headroom leaves."""
    pins = (*pins, "recompute=keep", "microbatch=1")
    with pytest.raises(PlanError) as refused:
        make_plan(program(), load_cluster("local:2"), pins=pins, memory_bytes=few)
    usable = int(refused.value.expected.partition(" bytes")[0].replace(",", ""))  # one byte less is refused
    assert make_plan(program(), cluster_of(usable), pins=pins, memory_bytes=usable).headroom == 0
    with pytest.raises(PlanError, match=f"{int((1 - HEADROOM) * usable):,} bytes"):
        make_plan(program(), cluster_of(usable), pins=pins)


def test_the_plan_says_what_is_left_free() -> None:
    plan = make_plan(program(), load_cluster("local:2"), pins=("pp=1",))
    assert plan.headroom == HEADROOM
    assert "headroom of 3% left free" in "".join(recommendation(plan))
    assert "3% of each device is left free" in str(plan)
    assert "3% left free" in plan.explain()
    assert Plan.from_json(plan.to_json()).headroom == HEADROOM
    given = make_plan(program(), load_cluster("local:2"), pins=("pp=1",), memory_bytes=1 << 28)
    assert "left free" not in str(given) + given.explain()


def test_one_device_leaves_headroom_too() -> None:
    peak = make_plan(program(), load_cluster("local:1"), pins=("recompute=keep", "microbatch=1")).predicted.peak_bytes
    pins = ("recompute=keep", "microbatch=1")
    assert make_plan(program(), cluster_of(peak, 1), pins=pins, memory_bytes=peak).predicted.peak_bytes == peak
    with pytest.raises(PlanError, match="no plan fits"):
        make_plan(program(), cluster_of(peak, 1), pins=pins)
    assert make_plan(program(), cluster_of(peak, 1), pins=pins, headroom=0.0).predicted.peak_bytes == peak


def test_headroom_beside_a_limit_and_headroom_that_is_no_part_are_refused() -> None:
    with pytest.raises(PlanError, match="memory 1GiB and headroom"):
        mw.plan(model(), BATCH, "local:2", memory="1GiB", headroom=0.1, loss=nn.functional.mse_loss)
    with pytest.raises(PlanError, match="headroom 2"):
        mw.plan(model(), BATCH, "local:2", headroom=2, loss=nn.functional.mse_loss)
    plan = make_plan(program(), load_cluster("local:2"), pins=("pp=1",))
    with pytest.raises(PlanError, match="headroom is"):
        Plan.from_json(replace(plan, headroom=2.0).to_json())
