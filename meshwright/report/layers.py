"""The model as the page shows it: the chain of layers, and of each distinct one its ops, layouts, times and choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from meshwright.capture.program import Op, Program, Segment
from meshwright.cluster import Mesh
from meshwright.cost.op.compute import op_seconds
from meshwright.errors import MeshwrightError
from meshwright.explain.alternatives import alternatives_of
from meshwright.explain.words import state_words
from meshwright.layout import Layout
from meshwright.plan import Plan
from meshwright.price.flow import flow

ASKED = ("linear", "matmul", "embedding", "attention", "conv", "experts", "einsum")
"""Ops whose other strategies are priced: the others follow them."""
MOST_PRICED = 400
"""Strategies that are priced for a page; on meshes of three axes an op has over a hundred."""
LISTED = 6
"""Other strategies of an op that are shown, the cheapest first."""


def layers(plan: Plan, program: Program) -> list[dict[str, Any]]:
    """The chain: each layer's stage and its kind, of those in `kinds`."""
    places = {key: place for place, key in enumerate(_distinct(plan, program))}
    return [
        {
            "name": segment.name,
            "stage": plan.stage_at(plan.stage_of(index).mesh.ranks[0]),
            "kind": places[segment.graph, plan.segments[index]],
        }
        for index, segment in enumerate(program.segments)
    ]


def _distinct(plan: Plan, program: Program) -> dict[tuple[int, int], int]:
    """The first layer of each kind: of one graph under one choice."""
    found: dict[tuple[int, int], int] = {}
    for index, segment in enumerate(program.segments):
        found.setdefault((segment.graph, plan.segments[index]), index)
    return found


def kinds(plan: Plan, program: Program) -> list[dict[str, Any]]:
    """Alternatives are priced for the commonest kind of each graph; those of the others are much the same."""
    found = _distinct(plan, program)
    counts = Counter((segment.graph, plan.segments[index]) for index, segment in enumerate(program.segments))
    left = [MOST_PRICED]
    asked = {max((key for key in found if key[0] == graph), key=lambda key: counts[key]) for graph, _ in found}
    return [_kind(plan, program, index, left if key in asked else [0]) for key, index in found.items()]


def _kind(plan: Plan, program: Program, index: int, left: list[int]) -> dict[str, Any]:
    segment, mesh, choice = program.segments[index], plan.stage_of(index).mesh, plan.choice(index)
    graph = program.graph(segment).at(plan.microbatch)
    values, made = graph.values(), flow(graph, choice, mesh, plan.common_layouts(program, index))
    ops = []
    for op in graph.ops:
        strategy = made.strategies[op.name]
        cost = op_seconds(op, strategy, values, mesh.device)
        ops.append(
            {
                "name": op.name,
                "target": op.target,
                "module": op.module,
                "shape": list(op.results[0].type.sizes) if op.results else [],
                "layout": _states(strategy.results[0]) if strategy.results else [],
                "forward_s": cost.forward_s,
                "backward_s": cost.backward_s if any(value.grad for value in op.results) else 0.0,
                "collectives": [f"{one.kind} over {one.axis}" for one in strategy.collectives_forward],
                "recomputed": any(value.name in choice.recompute for value in op.results),
                "others": _others(plan, program, segment, op, mesh, left),
            }
        )
    return {
        "ops": ops,
        "inputs": [_states(Layout.parse(text)) for text in choice.inputs],
        "outputs": [_states(Layout.parse(text)) for text in choice.outputs],
        "weights": _weights(plan, program, segment, mesh),
        "chunks": choice.chunks,
        "recomputed": len(choice.recompute),
        "offload": list(choice.offload),
    }


def _weights(plan: Plan, program: Program, segment: Segment, mesh: Mesh) -> list[dict[str, Any]]:
    sizes, rows = program.weight_bytes(), []
    for name in segment.params:
        entry = plan.parameters[name]
        rows.append(
            {
                "name": name,
                "bytes": sizes[name],
                "storage": _states(Layout.parse(entry.storage)),
                "compute": _states(Layout.parse(entry.compute)),
                "words": f"computed with {state_words(entry.compute, mesh.names)}; stored "
                f"{state_words(entry.storage, mesh.names)}",
            }
            if len(Layout.parse(entry.storage).states) == len(mesh.axes)
            else {"name": name, "bytes": sizes[name], "storage": [], "compute": [], "words": "held by another stage"}
        )
    return rows


def _states(layout: Layout | Sequence[Any]) -> list[str]:
    return [str(state) for state in layout]


def _others(
    plan: Plan, program: Program, segment: Segment, op: Op, mesh: Mesh, left: list[int]
) -> list[dict[str, Any]]:
    """What else an op could do, all around it as planned; what has no price is left out. left: to be priced yet."""
    if left[0] <= 0 or mesh.world_size == 1 or not any(word in op.target for word in ASKED):
        return []
    try:
        found = alternatives_of(plan, program, f"{segment.name}:{op.name}")
    except MeshwrightError:
        return []
    left[0] -= len(found)
    rest = [one for one in found if not one.chosen][:LISTED]
    return [{"text": one.text, "more_s": one.more_s, "more_bytes": one.more_bytes} for one in rest]
