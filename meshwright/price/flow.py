"""Flow: a segment under a Choice, as a strategy per op and each conversion between ops once.

The flow is the only reading of a Choice. The price counts it and the generator emits it. A value that several ops want
in the same layout is converted once. A value without gradient is the same in `R` and in `I`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.caches import CACHES
from meshwright.capture.program import Op, SegmentGraph, Value
from meshwright.cluster import Mesh
from meshwright.errors import PlanError, RuleError
from meshwright.layout import Conversion, I, Layout, conversion
from meshwright.plan import Choice
from meshwright.rules import Strategy, strategy


@dataclass(frozen=True, slots=True)
class Move:
    """A conversion of a value from the layout it is made in to one that an op wants."""

    value: str
    source: Layout
    target: Layout
    conversion: Conversion


@dataclass(frozen=True, slots=True)
class Flow:
    """strategies: by op name.
    at: coordinates of the rank whose local sizes the strategies have. Ranks differ only where a dim is cut unevenly.
    """

    graph: SegmentGraph
    mesh: Mesh
    strategies: dict[str, Strategy]
    layouts: dict[str, Layout]
    moves: dict[tuple[str, Layout], Move]
    at: tuple[int, ...] | None = None


def invariant(mesh: Mesh) -> Layout:
    return Layout((I,) * len(mesh.axes))


def canonical(layout: Layout, grad: bool) -> Layout:
    """The layout with `R` as `I` where there is no gradient, since the two differ in gradients alone."""
    return layout if grad else _without_gradient(layout)


@CACHES.memoized(maxsize=4096)
def _without_gradient(layout: Layout) -> Layout:
    return Layout(tuple(I if state.kind == "R" else state for state in layout.states))


def move(value: Value, source: Layout, target: Layout, mesh: Mesh) -> Move:
    found = conversion(source, target, value.type.sizes, value.type.itemsize, mesh, grad=value.grad)
    return Move(value.name, source, target, found)


def flow(
    graph: SegmentGraph,
    choice: Choice,
    mesh: Mesh,
    shared_values: Mapping[str, Layout] | None = None,
    at: tuple[int, ...] | None = None,
    known: Mapping[str, Strategy] | None = None,
) -> Flow:
    """The flow of a choice.

    graph: with its batch fixed.
    shared_values: layouts of common values; `I` unless given.
    at: coordinates of the rank to read it for, uneven strategies included.
    known: strategies by op, where they are at hand.
    """
    values = graph.values()
    layouts = _argument_layouts(graph, choice, mesh, shared_values or {})
    found = Flow(graph, mesh, {}, layouts, {}, at)
    for op in graph.ops:
        one = known[op.name] if known is not None else _read(op, values, choice, mesh, at)
        found.strategies[op.name] = one
        for name, wanted in zip(op.operands(), one.operands, strict=True):
            _want(found, values[name], wanted)
        for value, layout in zip(op.results, one.results, strict=True):
            layouts[value.name] = canonical(layout, value.grad)
    for name, text in zip(graph.outputs, choice.outputs, strict=True):
        _want(found, values[name], Layout.parse(text))
    for _, name in graph.updates:
        _want(found, values[name], invariant(mesh))
    return found


def _read(op: Op, values: Mapping[str, Value], choice: Choice, mesh: Mesh, at: tuple[int, ...] | None) -> Strategy:
    text = choice.strategies.get(op.name)
    if text is None:
        given = f"choices[].strategies of graph {choice.graph} has none for op {op.name}"
        raise PlanError(given, "one for each op of the layer", "undo the edit, or plan again")
    try:
        return strategy(op, values, mesh, text, at=at)
    except RuleError as error:
        raise PlanError(f"strategies.{op.name} is {text!r}", error.expected, "use one of these") from error


def _argument_layouts(
    graph: SegmentGraph, choice: Choice, mesh: Mesh, shared_values: Mapping[str, Layout]
) -> dict[str, Layout]:
    found = {value.name: Layout.parse(text) for value, text in zip(graph.inputs, choice.inputs, strict=True)}
    found |= {value.name: shared_values.get(value.name, invariant(mesh)) for value in graph.shared_values}
    for value in graph.params:
        found[value.name] = canonical(Layout.parse(choice.parameters[value.name]), value.grad)
    return found | {value.name: invariant(mesh) for value in graph.buffers}


def _want(found: Flow, value: Value, wanted: Layout) -> None:
    target, source = canonical(wanted, value.grad), found.layouts[value.name]
    if target != source and (value.name, target) not in found.moves:
        found.moves[value.name, target] = move(value, source, target, found.mesh)
