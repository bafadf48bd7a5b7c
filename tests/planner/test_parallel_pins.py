"""`cp=`, `ep=`, `vpp=` and `recompute=` with stages: the plan does what the pin says, by its layouts."""

from __future__ import annotations

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.explain.recipes import baselines
from meshwright.layout import Layout
from meshwright.models.reference import parse_reference
from meshwright.pins.meshes import readings_on
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan


def gpt(batch: int) -> Program:
    """Twelve positions."""
    return capture(*small_model("gpt")).at_batch(batch)


def test_cp_splits_the_sequence_and_no_weight() -> None:
    plan = make_plan(gpt(2), load_cluster("local:2"), pins=("cp=2", "microbatch=1"))
    assert plan.mesh.names == ("cp",)
    for choice in plan.choices:
        assert all(Layout.parse(text)[0].kind != "S" for text in choice.parameters.values())
    crossing = [Layout.parse(text)[0] for index in plan.segments[:-1] for text in plan.choices[index].outputs]
    assert crossing
    assert all(state.dim == 1 for state in crossing)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("batch", "pins", "words"),
    [
        (12, ("dp=8",), "dp=8 with a global batch of 12\n  expected: a batch that divides evenly, such as 8 or 16"),
        (2, ("dp=8",), "divides evenly, such as 8\n"),
        (
            16,
            ("dp=8", "microbatch=4"),
            "global batch of 16 in 4 parts\n  expected: a batch that divides evenly, such as 32",
        ),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_one_that_does(
    batch: int, pins: tuple[str, ...], words: str
) -> None:
    with pytest.raises(PlanError) as caught:
        readings_on(load_cluster("local:8").mesh((8,)), pins, batch)
    assert words in str(caught.value)


def test_cp_of_a_sequence_that_it_does_not_divide_is_refused() -> None:
    with pytest.raises(PlanError, match=r"pin cp=5(.|\n)*the model has 12"):
        make_plan(gpt(2), load_cluster("local:5"), pins=("cp=5",))


def test_ep_spreads_experts_and_splits_no_other_weight() -> None:
    model = "moe?layers=1&experts=4&hidden=16&heads=4&kv_heads=4&ffn=16&vocab=32&seq=8"
    program = capture(*parse_reference(model).meta(4))
    plan = make_plan(program, load_cluster("local:2"), pins=("ep=2", "microbatch=1"))
    assert plan.mesh.names == ("ep",)
    split = {
        name for name, entry in plan.parameters.items() if any(state.is_shard for state in Layout.parse(entry.compute))
    }
    assert split
    shapes = {parameter.name: parameter.type.sizes for parameter in program.parameters}
    assert all(len(shapes[name]) == 3 for name in split)


def test_ep_of_one_and_data_parallel_recipes_hold_all_experts() -> None:
    model = "moe?layers=1&experts=4&hidden=16&heads=4&kv_heads=4&ffn=64&vocab=32&seq=8"
    program, cluster = capture(*parse_reference(model).meta(4)), load_cluster("h100:2")
    whole = make_plan(program, cluster, pins=("dp=2", "zero=0", "ep=1"), precision="fp32")
    assert {entry.compute for entry in whole.parameters.values()} == {"[R]"}
    found = {one.name: one for one in baselines(program, cluster, stages=False)}
    assert found["DDP"].peak_bytes == whole.predicted.peak_bytes
    assert (found["DDP + EP"].peak_bytes or 0) < (found["DDP"].peak_bytes or 0)
    assert found["FSDP + EP"].pins == ("mesh=2", "ep=2", "zero=3")


def test_vpp_is_the_number_of_runs_of_each_stage() -> None:
    program = gpt(8)
    plan = make_plan(program, load_cluster("local:2"), pins=("pp=2", "vpp=2", "microbatch=4"))
    assert plan.schedule == "interleaved"
    assert [len(group) for group in plan.groups] == [2, 2]
    again = Plan.from_json(plan.to_json())
    assert again == plan
    with pytest.raises(PlanError, match="vpp=3"):
        Plan.from_json(plan.to_json().replace(b"vpp=2", b"vpp=3"))


@pytest.mark.parametrize("method", ["full", "selective"])
def test_recompute_holds_in_every_stage(method: str) -> None:
    program = gpt(4)
    plan = make_plan(program, load_cluster("local:2"), pins=("pp=2", "microbatch=2", f"recompute={method}"))
    assert len(plan.groups) == 2
    last = len(program.segments) - 1
    for index in range(len(program.segments)):
        if index < last and any(
            value.grad for op in program.graph(program.segments[index]).ops for value in op.results
        ):
            assert plan.choice(index).recompute, f"segment {index} keeps everything"
    if method == "full":
        assert not plan.choice(last).recompute
