"""`recompute=keep` under a memory limit: the limit is held against the clock's count of bytes."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.plan import Plan

settings = pytest.mark.parametrize(
    ("layers", "cluster"), [(2, "h100:2"), pytest.param(4, "h100:4", marks=pytest.mark.full)]
)


def planned(layers: int, cluster: str, limit: int | None = None) -> Plan:
    return mw.plan(
        f"gpt?layers={layers}&hidden=1024&heads=16&seq=1024",
        cluster=cluster,
        global_batch=16,
        precision="mixed",
        memory=limit,
        pins=("recompute=keep", "pp=1"),
        simpler_within=0.0,
    )


@settings
def test_a_limit_that_the_fastest_plan_meets_changes_nothing(layers: int, cluster: str) -> None:
    free = planned(layers, cluster)
    peak = free.predicted.peak_bytes
    for limit in (peak, int(1.1 * peak)):
        assert planned(layers, cluster, limit).predicted.step_s == free.predicted.step_s


@settings
def test_a_little_less_costs_little(layers: int, cluster: str) -> None:
    free = planned(layers, cluster)
    limit = int(0.97 * free.predicted.peak_bytes)
    plan = planned(layers, cluster, limit)
    assert plan.predicted.peak_bytes <= limit
    assert not plan.recomputes
    assert free.predicted.step_s < plan.predicted.step_s < 1.08 * free.predicted.step_s
    assert plan.predicted.step_s * (1 - plan.predicted.gap) <= free.predicted.step_s * (1 + 1e-9)


@pytest.mark.full
def test_what_keeps_everything_within_a_limit_is_found_without_the_pin() -> None:
    """By a rough count of bytes, 14 per cent above the clock's, nothing fits with everything kept."""
    given = {"cluster": "h100:8", "global_batch": 16, "precision": "mixed", "memory": 389_621_145}
    free, pinned = (mw.plan("gpt?layers=4&seq=256", **given, pins=pins) for pins in ((), ("recompute=keep",)))
    assert free.predicted.step_s <= pinned.predicted.step_s * 1.005
