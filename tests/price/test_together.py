"""Weights are priced as they travel: in buckets."""

from __future__ import annotations

import pytest

from meshwright.capture import capture
from meshwright.cluster import collective_s, load_cluster
from meshwright.models.reference import parse_reference
from meshwright.price.buckets import parameter_collectives
from meshwright.solve.plan import make_plan


@pytest.mark.parametrize("zero", [0, 3])
def test_what_weights_are_charged_is_what_their_buckets_take(zero: int) -> None:
    program = capture(*parse_reference("mlp?layers=3&inputs=24&hidden=48&classes=24").meta(8))
    plan = make_plan(program, load_cluster("dgx-h100:1"), pins=("mesh=8", "dp=8", f"zero={zero}", "microbatch=1"))
    found = list(parameter_collectives(plan, program))
    spent_s = sum(collective_s(item.kind, item.bytes, plan.mesh.axis(item.axis)) for item in found)
    alone = len(plan.parameters) * (3 if zero == 3 else 1)
    assert 0 < len(found) <= alone / 2, "several weights to a bucket"
    assert plan.predicted.parameters_s == pytest.approx(spent_s, rel=1e-3)
