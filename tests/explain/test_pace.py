"""Where a host's kernel launches set the pace, the answer, the table and `explain` say so, and what helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from captures import capture
from small_models import small_model

from meshwright.cli.answer import recipes
from meshwright.cluster import load_cluster
from meshwright.explain.explain import explain
from meshwright.explain.pace import is_host_bound, pace
from meshwright.explain.recipes import Baseline
from meshwright.explain.recommend import notes
from meshwright.planner.plan import make_plan
from meshwright.report.compared import compare


def test_stages_that_win_by_their_launches_say_so() -> None:
    """Small work on two GPUs: one process launches all kernels, a stage's its own."""
    program, cluster = capture(*small_model("gpt")), load_cluster("h100:2")
    plan = make_plan(program, cluster)
    whole = make_plan(program, cluster, pins=("dp=2", "zero=0"))
    assert len(plan.groups) == 2
    assert plan.predicted.step_s < whole.predicted.step_s * (1 - 0.005)  # else one stage is the simpler of equals
    launches = [stage.launch_s for stage in plan.predicted.stages]
    assert sum(launches) == pytest.approx(whole.predicted.step_s)  # one process launches what all stages do
    assert all(launch_s <= stage.busy_s for launch_s, stage in zip(launches, plan.predicted.stages, strict=True))
    assert pace(plan).startswith("stages win because the host sets the pace: one process needs ")
    assert pace(plan).endswith("; a larger batch or --compile helps")
    assert pace(plan) in notes(plan)
    assert pace(plan) in explain(plan).splitlines()
    wide = next(note for note in notes(plan) if note.startswith("the gap is to a bound of "))
    assert "for pipelines, which counts only a part of what stages wait for each other" in wide


def test_rows_that_wait_for_launches_are_marked() -> None:
    plan = make_plan(capture(*small_model("gpt")), load_cluster("h100:2"), pins=("dp=2", "zero=3"))
    found = plan.predicted
    assert is_host_bound(found)
    assert pace(plan).startswith("the host sets the pace: devices wait ")
    assert found.copies_s == pytest.approx(0.0, abs=1e-12)
    slow = Baseline("DDP", (), found.step_s, 1, True, microbatches=1, host_bound=True)
    lines = recipes(plan, [slow, replace(slow, name="TP", host_bound=False)]).splitlines()
    assert [line.endswith("fits, host-bound") for line in lines[2:5]] == [True, True, False]
    assert lines[-1].startswith("host-bound: the host needs longer to launch the kernels than the devices to run them")
    assert lines[-1].endswith("; a larger batch or --compile helps")
    assert pace(replace(plan, compile=True)).endswith("; a larger batch helps")
    busy = plan.with_prediction(host_s=0.0)
    assert pace(busy) == ""
    assert "host-bound" not in recipes(busy, [replace(slow, host_bound=False)])


def test_compare_says_what_waits_for_launches() -> None:
    program, cluster = capture(*small_model("gpt")), load_cluster("h100:2")
    plans = (make_plan(program, cluster, pins=pins) for pins in (("pp=2",), ("dp=2", "zero=3")))
    shown = {name: values for name, *values in compare(*plans).rows}
    assert shown["waiting for launches"][0] == "in forward and backward"
    assert shown["waiting for launches"][1].endswith(" ms")
    assert shown["global batch"][1] == "6 in 1 micro-batch"
