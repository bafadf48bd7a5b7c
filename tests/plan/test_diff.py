"""Two plans that decide anything differently are told apart, in a line that says what."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.explain.diff import ASKED
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(capture(*small_model("llama")), load_cluster("local:2"), pins=("dp=2",))


@pytest.fixture(scope="module")
def stages() -> Plan:
    return make_plan(capture(*small_model("llama")), load_cluster("local:2"), pins=("pp=2",))


def edited(plan: Plan, **changes: Any) -> Plan:
    """With fields of the choice of segment 1 changed."""
    choices = list(plan.choices)
    choices[plan.segments[1]] = replace(plan.choice(1), **changes)
    return replace(plan, choices=tuple(choices))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recompute": ("gelu",)}, "(activation checkpointing) in "),
        ({"keep": ("linear",)}, "kept for backward besides in "),
        ({"chunks": 2}, ": 1 -> 2"),
        ({"offload": ("linear",)}, "(activation offload) in "),
        ({"outputs": ("[I]",)}, "layouts of outputs in "),
        ({"inputs": ("[I]",)}, "layouts of inputs in "),
        ({"parameters": {}}, "weights in other layouts"),
        ({"strategies": {}}, "ops differently"),
        ({"graph": 99}, "-> 99"),
    ],
)
def test_what_a_segment_does_otherwise_is_said(plan: Plan, changes: dict[str, Any], said: str) -> None:
    first, *rest = plan.diff(edited(plan, **changes)).splitlines()
    assert said in first
    assert [line.split(":")[0] for line in rest] == ["step", "peak"]


def test_one_segment_is_named_and_many_are_counted(plan: Plan) -> None:
    count = plan.segments.count(plan.segments[1])
    where = "layer 1" if count == 1 else f"{count} layers (1, ...)"
    said = f"recomputed in backward (activation checkpointing) in {where}: nothing -> 1 op (gelu)"
    assert said in plan.diff(edited(plan, recompute=("gelu",)))
    many = tuple(f"op_{number}" for number in range(20))
    longer = edited(plan, recompute=(*many, "last"))
    assert ": 20 ops -> 21 ops (now also last)" in edited(plan, recompute=many).diff(longer)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory_bytes": 1 << 40}, "memory limit: the device's own less 3 % -> 1 TiB"),
        ({"pins": ()}, "constraints: dp=2 -> none"),
        ({"order": ("forward 0", "backward 0")}, "order: every layer once -> 2 steps, 0 of them passes"),
        ({"routed_via_stages": (1,)}, "values passed on from stage to stage, by layer: none -> 1"),
        ({"inputs": {}}, "batch tensors of another shape or dtype: "),
    ],
)
def test_what_the_whole_plan_does_otherwise_is_said(plan: Plan, changes: dict[str, Any], said: str) -> None:
    assert said in plan.diff(replace(plan, **changes)).splitlines()[0]


def test_what_a_stage_does_otherwise_is_said(plan: Plan, stages: Plan) -> None:
    assert stages.diff(replace(stages, links=())).startswith("links: other rates or none from stage 0 to 1")
    stage = plan.stages[0]
    name = next(iter(stage.inputs))
    changed = {
        "ranks 0, 1 -> 1, 0": replace(stage, mesh=replace(stage.mesh, ranks=(1, 0))),
        f"batch tensor {name}: [S(0)] -> [I]": replace(stage, inputs=stage.inputs | {name: "[I]"}),
        "weight of another stage w: not read -> [I]": replace(stage, tied_replicas={"w": "[I]"}),
        "common values are made": replace(stage, prologue=replace(stage.prologue, chunks=2)),
        "other links": replace(stage, mesh=replace(stage.mesh, axes=(replace(stage.mesh.axes[0], overhead_s=1.0),))),
        "device cpu -> abacus": replace(
            stage, mesh=replace(stage.mesh, device=replace(stage.mesh.device, name="abacus"))
        ),
    }
    for said, other in changed.items():
        assert f"stage 0: {said}" in plan.diff(replace(plan, stages=(other,)))


def test_no_decision_goes_unseen(plan: Plan) -> None:
    """Every field but predictions, search, where rules came from, sizes of weights and hosts: they decide nothing."""
    plain = json.loads(plan.to_json())
    seen = {
        "schema",
        "predicted",
        "rules",
        "choices",
        "segments",
        "stages",
        "parameters",
        "links",
        "order",
        "search_log",
    }
    seen |= {
        "routed_via_stages",
        "tasks",
        "answers",
        "form",
        "memory_bytes",
        "headroom",
        "pins",
        "inputs",
        "weight_bytes",
        "per_host",
    }
    assert set(plain) == seen | set(ASKED)


def test_another_peak_alone_is_said_and_one_weight_is_one(plan: Plan) -> None:
    assert plan.diff(plan) == ""
    assert "peak: " in plan.diff(plan.with_prediction(peak_bytes=plan.predicted.peak_bytes + (1 << 30)))
    name, entry = next(iter(plan.parameters.items()))
    moved = replace(entry, storage="[S(0)]", reduce_scatter_every_microbatch=True)
    other = replace(plan, parameters=plan.parameters | {name: moved})
    assert plan.diff(other).startswith(f"1 weight ({name}): ")
    assert "stored sharded on dim 0 over dp [S(0)]" in plan.diff(other)


def test_axes_of_stages_that_differ_are_not_mixed_up(stages: Plan) -> None:
    """Both have one axis, of another name: the plan alone does not say on which of them a weight lives."""
    first, second = stages.stages
    axis = replace(second.mesh.axes[0], name="tp")
    unlike = replace(stages, stages=(first, replace(second, mesh=replace(second.mesh, axes=(axis,)))))
    name, entry = next(iter(stages.parameters.items()))
    moved = replace(unlike, parameters=unlike.parameters | {name: replace(entry, storage="[S(0)]")})
    line = next(one for one in unlike.diff(moved).splitlines() if one.startswith(f"1 weight ({name})"))
    assert "stored [S(0)], used" in line
    assert " over " not in line
