"""`recompute=keep` under a memory limit: the limit is held against the clock's count of bytes."""

from __future__ import annotations

import meshwright as mw
from meshwright.plan import Plan


def planned(limit: int | None = None) -> Plan:
    return mw.plan(
        "gpt?layers=4&hidden=1024&heads=16&seq=1024",
        cluster="h100:4",
        global_batch=16,
        precision="mixed",
        memory=limit,
        pins=("recompute=keep", "pp=1"),
        simpler_within=0.0,
    )


def test_a_limit_that_the_fastest_plan_meets_changes_nothing() -> None:
    free = planned()
    peak = free.predicted.peak_bytes
    for limit in (peak, int(1.1 * peak)):
        assert planned(limit).predicted.step_s == free.predicted.step_s


def test_a_little_less_costs_little() -> None:
    free = planned()
    limit = int(0.97 * free.predicted.peak_bytes)
    plan = planned(limit)
    assert plan.predicted.peak_bytes <= limit
    assert not plan.recomputes
    assert free.predicted.step_s < plan.predicted.step_s < 1.08 * free.predicted.step_s
    assert plan.predicted.step_s * (1 - plan.predicted.gap) <= free.predicted.step_s * (1 + 1e-9)
