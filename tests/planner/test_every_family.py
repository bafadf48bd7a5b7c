"""For every family a plan comes out, on any number of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.capture import capture
from meshwright.cluster import Cluster, load_cluster
from meshwright.models.families import FAMILIES
from meshwright.models.reference import parse_reference
from meshwright.planner.plan import make_plan

SIZES = (1, 2, 3, 6, 8, 16)
OTHERS = ("hf:qwen3", "hf:bert", "hf:vit", "hf:t5")


def roomy(devices: int) -> Cluster:
    """Local processes with memory for any of them at its default size."""
    cluster = load_cluster(f"local:{devices}")
    return replace(cluster, devices=tuple(replace(one, memory_bytes=1 << 40) for one in cluster.devices))


@pytest.mark.full
@pytest.mark.parametrize("devices", SIZES)
@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_a_plan_comes_out(name: str, devices: int) -> None:
    program = capture(*parse_reference(name).meta(12))
    plan = make_plan(program, roomy(devices), model=name)
    plan.verify()
    assert plan.world_size == devices
    assert str(plan)
    assert plan.explain()
