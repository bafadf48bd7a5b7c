"""Axes are called what they came to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.models.reference import parse_reference
from meshwright.plan import Choice
from meshwright.planner.axis_names import name_axes
from meshwright.planner.plan import make_plan


@pytest.mark.parametrize(
    ("pins", "names"), [(("dp=2",), ("dp",)), (("tp=2",), ("tp",)), (("dp=2", "tp=2"), ("dp", "tp"))]
)
def test_pinned_roles_are_named(pins: tuple[str, ...], names: tuple[str, ...]) -> None:
    program = capture(*parse_reference("gpt?layers=1&hidden=512&heads=8&ffn=2048&vocab=256&seq=16").meta(4))
    shape = "x".join("2" for _ in names)
    plan = make_plan(program, load_cluster(f"local:{2 ** len(names)}"), pins=(f"mesh={shape}", *pins, "microbatch=1"))
    assert plan.mesh.names == names
    assert {item.axis for item in plan.predicted.collectives} <= {*names, "*".join(names)}


def test_whole_weights_on_parts_of_a_sequence_are_context_parallel() -> None:
    program = capture(*small_model("gpt"))
    plan = make_plan(program, load_cluster("local:2"), pins=("mesh=2", "dp=2", "microbatch=1"))

    def turned(choice: Choice) -> Choice:
        """Samples whole, the sequence cut."""
        inputs, outputs = (tuple(t.replace("S(0)", "S(1)") for t in texts) for texts in (choice.inputs, choice.outputs))
        return Choice(choice.graph, inputs, outputs, choice.strategies, choice.parameters)

    other = replace(plan, choices=tuple(map(turned, plan.choices)))
    assert name_axes(program, other).mesh.names == ("cp",)
