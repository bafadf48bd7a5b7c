"""A plan priced again, op by op on the unfolded program, costs what the solver said; alternatives are too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.explain.alternatives import alternatives_of
from meshwright.explain.what_if import changed_pins, what_if
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.planner.reprice import reprice
from meshwright.predict.simulated import simulate_plan


@pytest.mark.parametrize("precision", ["fp32", pytest.param("mixed", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["gpt", *(pytest.param(name, marks=pytest.mark.full) for name in ("resnet", "llama"))])
def test_the_price_of_a_plan_is_what_the_solver_reports(name: str, precision: str) -> None:
    model, batch = small_model(name)
    program = capture(model, batch, precision=precision)
    micro = () if program.couples_samples else ("microbatch=3",)
    for pins in ((), ("zero=3", *micro), micro):
        plan = make_plan(program, load_cluster("local:2"), precision=precision, pins=pins)
        check_price(plan, program)


def check_price(plan: Plan, program: Program) -> None:
    again = reprice(plan, program)
    assert again.predicted.step_s == pytest.approx(plan.predicted.step_s, rel=1e-9)
    for field in ("peak_bytes", "static_bytes", "resident_bytes", "transient_bytes"):
        assert getattr(again.predicted, field) == getattr(plan.predicted, field)
    assert sorted(map(str, again.predicted.collectives)) == sorted(map(str, plan.predicted.collectives))


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_the_price_of_a_recomputing_plan_is_what_the_solver_reports(name: str) -> None:
    program = capture(*small_model(name))
    free = make_plan(program, load_cluster("local:2"), recompute=False, pins=("dp=2", "zero=0", "microbatch=1"))
    limit = free.predicted.peak_bytes * 99 // 100
    plan = make_plan(program, load_cluster("local:2"), memory_bytes=limit, pins=free.pins)
    assert plan.recomputes
    assert plan.predicted.step_s > free.predicted.step_s
    check_price(plan, program)
    timeline = simulate_plan(plan, program)
    assert timeline.step_s == pytest.approx(plan.predicted.step_s, rel=1e-6)
    last = program.graphs[plan.choices[-1].graph]
    odd = replace(plan.choices[-1], keep=tuple(op.results[0].name for op in last.ops))
    edited = reprice(replace(plan, choices=(*plan.choices[:-1], odd)), program)
    assert edited.predicted.peak_bytes >= plan.predicted.peak_bytes, "it is no point of the curve, and has a price"


@pytest.fixture(scope="module")
def pinned() -> tuple[Plan, Program]:
    program = capture(*small_model("llama"))
    return make_plan(program, load_cluster("local:2"), pins=("dp=2", "zero=3")), program


def test_alternatives_of_a_weight_and_an_op_name_the_planned_one_first(pinned: tuple[Plan, Program]) -> None:
    plan, program = pinned
    ways = alternatives_of(plan, program, "layers.0.up.weight")
    assert [one.chosen for one in ways].count(True) == 1
    assert ways[0].chosen
    assert any(one.more_bytes > 0 and one.more_s < 0 for one in ways), "not to shard it: faster, and holds more"
    segment = program.segments[1]
    op = next(one.name for one in program.graph(segment).ops if "linear" in one.target)
    others = alternatives_of(plan, program, f"{segment.name}:{op}")
    assert others[0].chosen
    assert len(others) > 2
    assert others[0].more_s == 0
    with pytest.raises(PlanError, match="no parameter"):
        alternatives_of(plan, program, "layers.0.upp.weight")


def test_what_else_the_op_of_a_weight_could_do_has_its_price(pinned: tuple[Plan, Program]) -> None:
    """A table that the plan gathers whole could be used by columns or by rows, or be replicated."""
    plan, program = pinned
    planned, *others = alternatives_of(plan, program, "tokens.weight")
    assert planned.text.startswith("stored [S(0)], used [R]")
    held = {}
    for layout, factor in (("[S(1)]", "n"), ("[S(0)]", "v"), ("[I]", "-")):
        text = f"stored {layout}, used {layout}, embedding as {factor}"
        (found,) = [one for one in others if one.text.startswith(text)]
        assert found.more_s != 0
        held[layout] = found.more_bytes
    assert held["[S(0)]"] == held["[S(1)]"] < held["[I]"], "by rows or columns half of it is held"


def test_nothing_is_said_to_be_split_over_an_axis_of_one_device(pinned: tuple[Plan, Program]) -> None:
    program = pinned[1]
    plan = make_plan(program, load_cluster("local:2"), pins=("mesh=1x2", "dp=2"))
    idle, busy = plan.mesh.names
    assert f"axis {idle} of 1: one device, nothing is sharded over it" in plan.explain()
    assert f"{busy}: " in plan.explain()
    assert f"{idle}: " not in plan.explain()
    op = next(one.name for one in program.graphs[1].ops if "linear" in one.target)
    assert all(one.text.startswith("-,") for one in alternatives_of(plan, program, f"{program.segments[1].name}:{op}"))
    weights = alternatives_of(plan, program, program.segments[1].params[-1])
    assert all(one.text.startswith("stored [I, ") for one in weights)
    assert len(weights) > 1


def test_a_plan_says_where_its_rules_came_from(pinned: tuple[Plan, Program]) -> None:
    plan, _program = pinned
    assert "aten.linear.default" in plan.rules["table"]
    assert Plan.from_json(plan.to_json()).rules == plan.rules
    assert "meshwright's table: " in plan.explain()
    assert "replicated on every device: custom.op" in replace(plan, rules={"fallback": ("custom.op",)}).explain()


def test_one_pin_changed_gives_the_plan_of_that_pin(pinned: tuple[Plan, Program]) -> None:
    plan, program = pinned
    other = what_if(plan, program, ["zero=0"])
    assert other.pins == ("dp=2", "zero=0")
    assert {entry.storage for entry in other.parameters.values()} == {"[I]"}
    assert other.price(program).predicted.step_s == pytest.approx(other.predicted.step_s, rel=1e-9)
    assert changed_pins(plan.pins, ["zero=", "tp=2"]) == ("dp=2", "tp=2")
    with pytest.raises(PlanError, match="name=value"):
        changed_pins(plan.pins, ["zero"])
    with pytest.raises(PlanError, match="pin 'zz=' drops a pin that there is not"):
        changed_pins(plan.pins, ["zz="])
    with pytest.raises(PlanError, match=r"(?s)pin 'tp=' drops a pin that there is not.*own: dp=2, zero=3"):
        changed_pins(plan.pins, ["tp="])
    with pytest.raises(PlanError, match="a pin of the plan, which has none"):
        changed_pins((), ["tp="])
    assert changed_pins(("microbatch=2", "tp=2"), ["microbatches=4", "tp="]) == ("microbatches=4",)


def test_a_plan_explains_itself_and_says_what_another_does_differently(pinned: tuple[Plan, Program]) -> None:
    plan, program = pinned
    text = plan.explain()
    for part in ("where the time goes", "where the memory goes", "all_gather over dp", "memory is not the bottleneck"):
        assert part in text
    tight = replace(plan, memory_bytes=plan.predicted.peak_bytes + 1)
    assert "memory is the bottleneck" in tight.explain()
    assert plan.diff(plan) == ""
    other = make_plan(program, load_cluster("local:2"), pins=("dp=2", "zero=0"))
    found = plan.diff(other)
    assert "stored sharded on dim 0 over dp [S(0)], used replicated [R], resharded after forward -> " in found
    assert "-> float32, stored replicated [I], used replicated [R]" in found
