"""The pins of a row of the recipe table give that row as a plan of its own."""

from __future__ import annotations

import pytest
from captures import capture
from small_models import small_model

from meshwright.cluster import load_cluster
from meshwright.explain.recipes import baselines
from meshwright.planner.plan import make_plan


def test_the_pins_of_a_row_plan_it() -> None:
    program, cluster = capture(*small_model("gpt")), load_cluster("local:2")
    rows = {row.name: row for row in baselines(program, cluster)}
    assert not rows["parameter server"].as_plan  # nothing that meshwright runs
    assert not rows["HSDP"].as_plan
    for name in ("DDP", "FSDP (ZeRO-3)", "FSDP + full checkpointing", "TP", "PP + FSDP"):
        row = rows[name]
        plan = make_plan(program, cluster, pins=row.as_plan)
        assert plan.microbatches == row.microbatches
        assert row.step_s is not None
        assert plan.predicted.step_s == pytest.approx(row.step_s)
        assert row.rough or plan.predicted.peak_bytes == row.peak_bytes
