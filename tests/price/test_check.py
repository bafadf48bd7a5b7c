"""A plan edited by hand computes the right thing or is refused with the field, before anything runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import MeshwrightError
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.price.check import check_plan


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(*small_model("llama"))


@pytest.fixture(scope="module")
def plan(program: Program) -> Plan:
    return make_plan(program, load_cluster("local:2"), pins=("tp=2",))


def test_a_plan_as_made_is_accepted(plan: Plan, program: Program) -> None:
    check_plan(plan, program)


UP = "layers.0.up.weight"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda p: p["choices"][0].update(outputs=["[S(0)]"]), "hands it over"),
        (lambda p: p.update(microbatches=4), "microbatches is 4"),
        (lambda p: p.update(precision="bf16"), "precision"),
        (lambda p: p.update(optimizer="lion"), "lion"),
        (lambda p: p.update(batch=10), "inputs.tokens"),
        (lambda p: p["parameters"][UP].update(storage="[P]"), f"{UP}.storage"),
        (lambda p: p["parameters"][UP].update(storage="[S(9)]"), f"{UP}.storage"),
        (lambda p: p["parameters"][UP].update(compute="[I]"), "up_weight"),
        (lambda p: p["parameters"][UP].update(dtype="float16"), f"{UP}.dtype"),
        (lambda p: p["parameters"].pop(UP), UP),
        (lambda p: p["inputs"]["tokens"].update(dtype="float33"), "float33"),
        (lambda p: p["choices"][1]["strategies"].update(nothing="-"), "nothing"),
        (lambda p: p["choices"][1]["strategies"].update(linear="zz"), "linear"),
        (
            lambda p: p["choices"][1]["strategies"].pop("linear"),
            "choices[].strategies of graph 1 has none for op linear",
        ),
        (lambda p: p["choices"][-1].update(outputs=["[P]"]), "loss"),
        (lambda p: p["choices"][1].update(graph=0), "graph is 0"),
        (lambda p: p["choices"][1].update(recompute=["nonsense~2"]), ".offload names nonsense~2"),
        (lambda p: p["choices"][0].update(offload=["tokens"]), r"choices[0].offload names tokens"),
        (lambda p: p.update(schedule="gpipe"), "schedule is 'gpipe'"),
        (lambda p: p["stages"][0]["prologue"].update(outputs=["[I]"]), "prologue has 0 inputs and 1 outputs"),
        (lambda p: p["stages"][0]["prologue"]["strategies"].update(cos="zz"), "strategies.cos"),
    ],
)
def test_an_edit_that_would_compute_something_else_is_refused(
    plan: Plan, program: Program, change: Any, fault: str
) -> None:
    plain = json.loads(plan.to_json())
    change(plain)
    with pytest.raises(MeshwrightError) as caught:
        check_plan(Plan.from_json(json.dumps(plain).encode()), program)
    assert fault in str(caught.value)


@pytest.mark.parametrize("number", [0, 2, 4, 6, 64])
def test_micro_batches_that_ranks_cannot_share_are_refused_with_those_that_they_can(
    number: int, program: Program
) -> None:
    """Six samples over two ranks: at load where the last would be empty, by the model else."""
    made = json.loads(make_plan(program, load_cluster("local:2"), pins=("dp=2",)).to_json())
    with pytest.raises(MeshwrightError) as caught:
        check_plan(Plan.from_json(json.dumps(made | {"microbatches": number}).encode()), program)
    assert f"microbatches is {number} with a batch of 6\n" in str(caught.value)
    assert "as many for each of 2 ranks, one of 1, 3\n" in str(caught.value)
    for fits in (1, 3):
        check_plan(Plan.from_json(json.dumps(made | {"microbatches": fits}).encode()), program)
