"""Values that skip stages go the cheaper way: to each reader directly, or from stage to stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.capture import Program, capture
from meshwright.cluster import load_cluster
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan, StageLink
from meshwright.planner.memory.plans import one_device_plan
from meshwright.planner.pipeline.by_hand import cut_stages, equal_cuts
from meshwright.planner.pipeline.realize import route_far_values, skipping
from meshwright.predict.stage_traffic import rank_traffic
from meshwright.predict.step import pipeline_predicted as predicted
from meshwright.schedule import plan_pipeline


@pytest.fixture(scope="module")
def unet() -> Program:
    return capture(*parse_reference("unet?width=24&levels=2&blocks=1&heads=24&image=8").meta(12))


def piped(program: Program, far_bandwidth: float) -> Plan:
    """Three stages; the first and the last are joined by a link of this rate, neighbours by a faster one."""
    one = replace(one_device_plan(program, load_cluster("local:1").mesh((1,))), microbatches=3)
    plan = cut_stages(program, [one] * 3, equal_cuts(len(program.segments), 3))
    rates = {(0, 1): 1e8, (1, 2): 1e8, (0, 2): far_bandwidth}
    wires = [StageLink(a, b, 1e-5, rate) for (source, target), rate in rates.items() for a, b in ((source, target),)]
    return replace(plan, links=(*wires, *(replace(w, source=w.target, target=w.source) for w in wires)))


@pytest.mark.parametrize(("far", "relays"), [(1e5, True), (1e9, False)])
def test_the_faster_way_is_taken(unet: Program, far: float, relays: bool) -> None:
    direct, _ = predicted(piped(unet, far), unet)
    assert skipping(plan_pipeline(direct, unet))
    found = route_far_values(direct, unet)
    assert bool(found.routed_via_stages) == relays
    assert found.predicted.step_s <= direct.predicted.step_s
    assert Plan.from_json(found.to_json()).routed_via_stages == found.routed_via_stages


def test_a_relay_passes_through_the_stage_between(unet: Program) -> None:
    plan = piped(unet, 1e5)
    far = tuple(skipping(plan_pipeline(plan, unet)))
    ends = {one.axis for one in rank_traffic(plan, unet, 0) if one.kind == "send"}
    assert ends == {"rank 1", "rank 2"}
    ends = {one.axis for one in rank_traffic(replace(plan, routed_via_stages=far), unet, 0) if one.kind == "send"}
    assert ends == {"rank 1"}
