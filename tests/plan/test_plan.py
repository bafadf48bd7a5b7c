"""A plan is text one can read, edit and compare; what is not a plan is refused with the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import LayoutError, PlanError
from meshwright.plan import Plan
from meshwright.plan.units import parse_bytes, show_bytes, show_seconds
from meshwright.solve.plan import make_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(capture(*small_model("llama")), load_cluster("local:2"), pins=("tp=2",))


def test_a_plan_survives_its_file(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def edited(plan: Plan, change: Any) -> bytes:
    plain = json.loads(plan.to_json())
    change(plain)
    return json.dumps(plain).encode()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda p: p.update(schema=99), "schema 99"),
        (lambda p: p.pop("schema"), "not a plan"),
        (lambda p: p.update(batch="many"), r"batch"),
        (lambda p: p["segments"].__setitem__(0, 77), r"segments\[0\] is 77"),
        (lambda p: p["choices"][0].update(outputs=["[I, I]"]), r"choices\[0\].outputs"),
        (lambda p: p["stages"][0].update(end=1), "stages cover"),
    ],
)
def test_an_edit_to_nonsense_is_refused_with_the_field(plan: Plan, change: Any, fault: str) -> None:
    with pytest.raises(PlanError, match=fault):
        Plan.from_json(edited(plan, change))


def test_a_layout_that_is_none_is_refused(plan: Plan) -> None:
    with pytest.raises(LayoutError, match="Q"):
        Plan.from_json(edited(plan, lambda p: p["choices"][0].update(outputs=["[Q]"])))


def test_what_is_not_there_or_not_json(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load(tmp_path / "none.json")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(PlanError, match="not a plan"):
        Plan.load(tmp_path / "text")


def test_a_plan_for_another_model_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError, match="another model"):
        plan.check_program(capture(*small_model("gpt")))
    plan.check_program(capture(*small_model("llama")))


def test_units() -> None:
    assert parse_bytes("1.5GiB") == 3 << 29
    assert parse_bytes("20 MB") == 20_000_000
    assert show_bytes(3 << 29) == "1.5 GiB"
    assert show_seconds(0.00123) == "1.23 ms"
    with pytest.raises(PlanError, match="memory 'lots'"):
        parse_bytes("lots")
