"""Where several GPUs gain little or nothing over one, `plan` says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from captures import capture
from small_models import small_model

from meshwright.cli.answer import answer
from meshwright.cluster import load_cluster
from meshwright.explain import one_device as alone
from meshwright.explain.one_device import single_device_note
from meshwright.planner.plan import make_plan


def test_a_tiny_model_is_told_what_one_gpu_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    program, cluster = capture(*small_model("gpt")), load_cluster("h100:2")
    plan = make_plan(program, cluster, pins=("dp=2", "zero=3"))
    assert single_device_note(plan, program, cluster) == ""  # it was asked for
    plan = replace(plan, pins=())
    one_s = make_plan(program, load_cluster("h100:1")).predicted.step_s
    slow = plan.with_prediction(step_s=one_s)
    said = single_device_note(slow, program, cluster)
    assert said.startswith("one H100-SXM-80GB is enough: it takes ")
    assert said.endswith(" by itself, no longer than these 2")
    assert f"note: {said}" in answer(slow, program, None, [said]).splitlines()
    assert (
        single_device_note(plan.with_prediction(step_s=one_s / 1.2), program, cluster) == ""
    )  # of two, 1.2 is over a quarter
    monkeypatch.setattr(alone, "USED", 0.7)
    said = single_device_note(plan.with_prediction(step_s=one_s / 1.2), program, cluster)
    assert said.startswith("these 2 are 1.2x as fast as one H100-SXM-80GB (")
    assert single_device_note(plan, program, load_cluster("local:2")) == ""
