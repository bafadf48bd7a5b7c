"""Weights are priced as they travel: in buckets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from meshwright.capture import capture
from meshwright.cluster import Group, Link, Member, collective_s, load_cluster
from meshwright.models.reference import parse_reference
from meshwright.planner.plan import make_plan
from meshwright.price.buckets import parameter_collectives, reduced


@pytest.mark.parametrize("zero", [0, 3])
def test_what_weights_are_charged_is_what_their_buckets_take(zero: int) -> None:
    program = capture(*parse_reference("mlp?layers=3&inputs=24&hidden=48&classes=24").meta(8))
    plan = make_plan(program, load_cluster("dgx-h100:1"), pins=("mesh=8", "dp=8", f"zero={zero}", "microbatch=1"))
    found = list(parameter_collectives(plan, program))
    spent_s = sum(collective_s(item.kind, item.bytes, plan.mesh.axis(item.axis)) for item in found)
    alone = len(plan.parameters) * (3 if zero == 3 else 1)
    assert 0 < len(found) <= alone / 2, "several weights to a bucket"
    assert plan.predicted.parameters_s == pytest.approx(spent_s, rel=1e-3)


def test_over_slow_links_gradients_leave_in_the_order_of_backward() -> None:
    """In four parts, each with its latency; where latency weighs, in one."""
    program = capture(*parse_reference("gpt?layers=2&hidden=64&heads=4&ffn=256&vocab=64&seq=8").meta(4))
    host = load_cluster("local:1")
    for bandwidth, parts in ((1e6, 4), (1e9, 1)):
        root = Group("pod", Link(2e-4, bandwidth), (Member(host.root, 2),))
        plan = make_plan(program, replace(host, root=root), pins=("dp=2", "zero=0", "microbatches=1"))
        found = reduced(plan, program, 1, scatter=False).buckets
        names = [name for bucket in found for name in bucket.names]
        assert len(found) == parts
        assert names[0].endswith("down.weight")
        assert names[-1].endswith("norm1.bias")
        assert sorted(names) == sorted(program.segments[1].params)
        if parts > 1:
            items = parameter_collectives(plan, program)
            spent_s = sum(collective_s(item.kind, item.bytes, plan.mesh.axis(item.axis)) for item in items)
            assert plan.predicted.parameters_s == pytest.approx(spent_s, rel=1e-2)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("pins", [("dp=2", "zero=0"), ("dp=2", "zero=3"), ("tp=2",)])
def test_a_weight_without_elements_costs_nothing(pins: tuple[str, ...]) -> None:
    model = nn.Sequential(nn.Linear(0, 4), nn.Linear(4, 4))
    program = capture(model, (torch.empty(8, 0),), lambda made, _: made.square().mean())
    plan = make_plan(program, load_cluster("local:2"), pins=pins)
    assert plan.parameters["0.weight"]
    assert plan.predicted.step_s > 0
