"""The order of a searched schedule is in the plan: it is read from there, and never found anew from predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cli import main
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError, VerifyError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.plan.tasks import parse_tasks, show_tasks
from meshwright.plan.units import show_seconds
from meshwright.planner.plan import make_plan
from meshwright.schedule import ORDERS, pipeline, plan_lists

MODEL = "gpt?layers=4&hidden=16&heads=2&ffn=32&vocab=32&seq=8&tied=false"


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(*parse_reference(MODEL).meta(8))


@pytest.fixture(scope="module")
def plan(program: Program) -> Plan:
    pins = ("pp=2", "schedule=searched", "microbatch=4")
    return make_plan(program, load_cluster("local:2"), model=MODEL, pins=pins)


@given(st.sampled_from(sorted(ORDERS)), st.integers(1, 4), st.integers(1, 5))
def test_orders_come_back_from_their_text(schedule: str, stages: int, microbatches: int) -> None:
    order = ORDERS[schedule](pipeline(range(1, stages + 1), microbatches))
    assert parse_tasks(show_tasks(order)) == order


def test_other_predictions_change_no_order(plan: Plan, program: Program) -> None:
    """A rank whose version or machine predicts other seconds must still run what its peers run."""
    stages = [
        replace(stage, forward_s=(7.0,), backward_input_s=(1e-3,), backward_weight_s=(5.0,), in_flight=1)
        for stage in plan.predicted.stages
    ]
    other = plan.with_prediction(stages=tuple(stages))
    assert plan_lists(other, program) == plan_lists(plan, program)
    assert plan_lists(Plan.from_json(plan.to_json()), program) == plan_lists(plan, program)


def edited(plan: Plan, change: Any) -> bytes:
    plain = json.loads(plan.to_json())
    change(plain)
    return json.dumps(plain).encode()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda p: p.update(tasks=[]), "tasks has 0 lines with schedule 'searched'"),
        (lambda p: p["tasks"].pop(), "tasks of 1 stage"),
        (lambda p: p["tasks"].__setitem__(0, p["tasks"][0] + " 0F9"), r"tasks\[0\] has 0F9 1 times"),
        (lambda p: p["tasks"].__setitem__(0, p["tasks"][0].replace("0F0 ", "")), r"tasks\[0\] has 0F0 0 times"),
        (lambda p: p["tasks"].__setitem__(1, "forward"), r"tasks\[1\] has 'forward'"),
    ],
)
def test_an_edited_order_that_is_none_is_refused(plan: Plan, change: Any, fault: str) -> None:
    with pytest.raises(PlanError, match=fault):
        Plan.from_json(edited(plan, change))


def test_an_edited_order_in_which_stages_wait_for_each_other_is_refused(plan: Plan, program: Program) -> None:
    first, second = (line.split() for line in plan.tasks)
    waits = replace(plan, tasks=(" ".join(first), " ".join(reversed(second))))
    with pytest.raises((PlanError, VerifyError)):
        plan_lists(waits, program)


def test_plans_of_schema_2_are_upgraded(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the names of then, and without the order, which that version found from the predictions."""
    plain = json.loads(plan.to_json())
    for name in ("tasks", "compile", "answers"):
        plain.pop(name)
    plain["wires"], plain["relayed"], plain["schema"] = plain.pop("links"), plain.pop("routed_via_stages"), 2
    for stage in plain["stages"]:
        stage["guests"] = stage.pop("tied_replicas")
    for entry in plain["parameters"].values():
        entry["regather"] = entry.pop("reshard_after_forward")
        entry["scatter"] = entry.pop("reduce_scatter_every_microbatch")
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(plain))
    with pytest.raises(PlanError, match="--upgrade"):
        Plan.load(old)
    assert main(["plan", "--upgrade", str(old), "-o", str(new)]) == 0
    assert Plan.load(new) == plan
    plain["predicted"]["step_s"] *= 3
    old.write_text(json.dumps(plain))
    capsys.readouterr()
    assert main(["plan", "--upgrade", str(old), "-o", str(new)]) == 0
    assert "the file says step" in capsys.readouterr().out
    again = Plan.load(new).predicted
    assert (again.step_s, again.peak_bytes) == (plan.predicted.step_s, plan.predicted.peak_bytes), "at today's prices"
    assert main(["plan", "gpt2", "--upgrade", str(old), "-o", str(new), "--pin", "tp=2"]) != 0
    assert "--upgrade with model, --pin" in capsys.readouterr().err


def test_an_edited_prediction_is_not_explained(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step_s = plan.predicted.step_s

    def faster(plain: dict[str, Any]) -> None:
        plain["predicted"]["step_s"] = 1e-6

    file = tmp_path / "edited.json"
    file.write_bytes(edited(plan, faster))
    assert main(["explain", str(file)]) == 0
    said = capsys.readouterr()
    assert "at today's prices; the file says step 1 us" in said.err
    assert show_seconds(step_s) in said.out
    assert "step 1 us" not in said.out
