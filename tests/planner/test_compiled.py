"""Compiled plans on several devices: priced and kept as compiled pairs are; no bound is claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.explain.what_if import what_if
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.predict import predict


def test_a_compiled_plan_is_priced_and_kept_as_compiled_pairs_are() -> None:
    program, cluster, pins = capture(*small_model("llama")), load_cluster("h200:2"), ("zero=3", "microbatch=1")
    eager = make_plan(program, cluster, pins=pins)
    plan = make_plan(program, cluster, pins=pins, compile=True)
    assert plan.compile
    assert not eager.compile
    assert plan.predicted.step_s < eager.predicted.step_s
    as_eager = replace(plan, choices=eager.choices, segments=eager.segments)
    assert plan.predicted.step_s <= predict(as_eager, program).step_s
    assert "no bound known" in str(plan)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.full
def test_a_compiled_plan_keeps_a_limit_and_stays_compiled_when_a_pin_changes() -> None:
    program, cluster, pins = capture(*small_model("llama")), load_cluster("h200:2"), ("zero=3", "microbatch=1")
    plan = make_plan(program, cluster, pins=pins, compile=True)
    limit = int(0.97 * plan.predicted.peak_bytes)
    tight = make_plan(program, cluster, pins=pins, compile=True, memory_bytes=limit)
    assert tight.predicted.peak_bytes <= limit
    assert tight.memory_bytes == limit
    assert what_if(plan, program, ["zero=1"]).compile
