"""The bound on pipelines covers every number of micro-batches, submesh, sharding and schedule, tried or not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.cutting import batch_cuts
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.pins.stages import pipeline_pins
from meshwright.plan import Plan
from meshwright.planner.effort import NEAR
from meshwright.planner.pipeline import relaxation
from meshwright.planner.pipeline.search import PipelineSearch
from meshwright.planner.plan import make_plan
from meshwright.price.parameter import Setting

LARGE = "gpt?layers=3&hidden=512&heads=8&ffn=2048&vocab=1024&seq=256&tied=false"
"""Devices take longer than their host."""

WIDE = "gpt?layers=4&hidden=1024&heads=4&ffn=4096&vocab=128&seq=1024"
"""Saved tensors take as much as weights and their states."""

SMALL = "gpt?layers=3&hidden=64&heads=4&ffn=128&vocab=256&seq=32"
MIXTURE = "moe?layers=2&experts=4&vocab=64&seq=16"


@cache
def program(name: str) -> Program:
    return capture(*parse_reference(name).meta(8))


def pinned(name: str, cluster: str, *pins: str, memory_bytes: int | None = None) -> Plan | None:
    try:
        return make_plan(program(name), load_cluster(cluster), pins=pins, memory_bytes=memory_bytes, simpler_within=0.0)
    except PlanError:
        return None


def bound(name: str, cluster: str, count: int) -> float:
    search = PipelineSearch(program(name), load_cluster(cluster), None, Setting(), pipeline_pins(()))
    most_s = pinned(name, cluster, "pp=2", f"microbatch={count}")
    return search.relaxation.bound_s(count, 2 * most_s.predicted.step_s if most_s else 1.0)


@pytest.mark.parametrize(
    ("name", "cluster", "part"),
    [
        (LARGE, "h100:2", None),
        (SMALL, "local:2", 0.7),
        pytest.param(LARGE, "h100:2", 0.7, marks=pytest.mark.full),
        pytest.param(SMALL, "local:2", None, marks=pytest.mark.full),
        pytest.param(MIXTURE, "h100:2", None, marks=pytest.mark.full),
        pytest.param(MIXTURE, "h100:2", 0.7, marks=pytest.mark.full),
    ],
)
def test_no_pinned_plan_is_below_the_bound_of_the_plan_without_pins(
    name: str, cluster: str, part: float | None
) -> None:
    """part: of the bytes that the fastest plan wants, where devices are short of memory."""
    plan = pinned(name, cluster)
    assert plan is not None
    memory_bytes = int(part * plan.predicted.peak_bytes) if part else None
    plan = pinned(name, cluster, memory_bytes=memory_bytes) if part else plan
    if plan is None:
        return
    bound_s = plan.predicted.step_s * (1 - plan.predicted.gap)
    for count in batch_cuts(8):
        rival = pinned(name, cluster, "pp=2", f"microbatch={count}", memory_bytes=memory_bytes)
        assert rival is None or rival.predicted.step_s >= bound_s * (1 - 1e-9), count


@pytest.mark.parametrize(
    ("cluster", "count"),
    [
        pytest.param(cluster, count, marks=() if (cluster, count) == ("h100:4", 4) else pytest.mark.full)
        for cluster in ("local:4", "h100:4")
        for count in (1, 3, 4, 8)
    ],
)
def test_each_number_of_micro_batches_has_a_bound_that_none_of_its_pipelines_is_below(cluster: str, count: int) -> None:
    bound_s = bound(LARGE, cluster, count)
    kinds = [("pp=2",), ("pp=4",), ("pp=1+3", "schedule=zero-bubble"), ("pp=2", "schedule=interleaved")]
    rivals = [pinned(LARGE, cluster, *pins, f"microbatch={count}") for pins in kinds]
    steps = [one.predicted.step_s for one in rivals if one is not None]
    assert steps
    assert 0.4 * min(steps) < bound_s <= min(steps) * (1 + 1e-9)


def test_little_memory_raises_the_bound_and_no_pipeline_is_below_it() -> None:
    def bound_s(count: int, memory_bytes: int | None) -> float:
        search = PipelineSearch(program(WIDE), load_cluster("h100:2"), memory_bytes, Setting(), pipeline_pins(()))
        return search.relaxation.bound_s(count, 1.0)

    for count in (2, 4):
        assert bound_s(count, 500 << 20) > 1.05 * bound_s(count, None), count
    little = 700 << 20
    assert bound_s(4, little) > bound_s(4, None)
    for schedule in ("1f1b", "interleaved"):
        rival = pinned(WIDE, "h100:2", "pp=2", f"schedule={schedule}", "microbatch=4", memory_bytes=little)
        assert rival is not None
        assert rival.predicted.step_s >= bound_s(4, little) * (1 - 1e-9), schedule


def test_the_bound_of_many_devices_is_below_every_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work, shared evenly: the only bound on more devices than `MOST_UNITS`, here on four."""
    steps = [
        one.predicted.step_s
        for pins in (("pp=2",), ("pp=4",), ("pp=1+3",))
        for count in (1, 4, 8)
        if (one := pinned(LARGE, "h100:4", *pins, f"microbatch={count}")) is not None
    ]
    monkeypatch.setattr(relaxation, "MOST_UNITS", 1)
    bounds = {bound(LARGE, "h100:4", count) for count in (1, 4, 8)}
    assert len(bounds) == 1, "it is found once"
    assert 0.1 * min(steps) < bounds.pop() <= min(steps)


def test_a_bound_is_near_where_little_is_given_away() -> None:
    """Two stages of one device each and many micro-batches: messages, gathers and conversions take little there."""
    name, cluster = LARGE.replace("vocab=1024", "vocab=4096"), "h100:2"
    found = pinned(name, cluster, "pp=2", "microbatch=8")
    assert found is not None
    assert found.predicted.step_s * 0.7 < bound(name, cluster, 8) <= found.predicted.step_s


def test_a_bound_is_raised_no_further_than_asked() -> None:
    search = PipelineSearch(program(LARGE), load_cluster("h100:2"), None, Setting(), pipeline_pins(()))
    bound_s = search.relaxation.bound_s
    best = bound_s(8, 1.0)
    assert 0 < best < 1.0
    assert bound_s(8, best / 2) >= best / 2
    assert bound_s(8, 1.0) >= best
    fresh = PipelineSearch(program(LARGE), load_cluster("h100:2"), None, Setting(), pipeline_pins(()))
    assert fresh.relaxation.bound_s(8, best * (1 - NEAR)) == best * (1 - NEAR)


@pytest.mark.parametrize(("cluster", "gib"), [("h100:4", None), ("h100:4", 0.5), ("h100:6", 0.4)])
def test_bounds_that_are_refined_where_they_have_to_be_leave_open_what_those_that_are_refined_at_once_do(
    cluster: str, gib: float | None
) -> None:
    memory_bytes = None if gib is None else int(gib * 2**30)
    search = PipelineSearch(program(WIDE), load_cluster(cluster), memory_bytes, Setting(), pipeline_pins(()))
    for count in (2, 4):
        bound_s = search.relaxation.bound_s(count, 1.0)
        fresh, whole = (search.relaxation.relaxed(count) for _ in range(2))
        assert fresh is not None
        assert whole is not None
        whole.refine(frozenset(whole.models))
        for limit_s in bound_s * np.linspace(0.9, 1.2, 13):
            assert fresh.any_within(limit_s) is whole.any_within(limit_s), limit_s / bound_s
        assert not whole.any_within(0.98 * bound_s)
        assert whole.any_within(1.02 * bound_s)
