"""Layouts of the batch and of shared values: that of their readers, where these agree.

The solver takes shared values as invariant, since slicing needs no communication. Afterwards a value that all readers
slice alike is read or made in slices, so that a data-parallel rank never sees other ranks' samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.capture.program import Op, Program, Value
from meshwright.cluster import Mesh
from meshwright.layout import Layout
from meshwright.plan import Choice, InputPlan
from meshwright.plan.stages import stage_inputs, stage_prologue
from meshwright.price.flow import Flow, canonical, flow, invariant
from meshwright.rules import Strategy, strategies

Wishes = dict[str, set[Layout]]


def input_plans(program: Program) -> dict[str, InputPlan]:
    """The batch tensors."""
    fixed = {value.name: value.type.at(program.batch) for value in program.inputs}
    return {name: InputPlan(kind.sizes, kind.dtype) for name, kind in fixed.items()}


def input_layouts(
    program: Program, mesh: Mesh, choices: Sequence[Choice], first: int = 0
) -> tuple[dict[str, str], Choice]:
    """(the layouts of the batch tensors, the prologue's Choice) of the stage that runs segments from `first` on so.

    `program` is at the batch that runs at a time.
    """
    wishes: Wishes = {}
    seen: dict[str, Flow] = {}
    end = first + len(choices)
    for segment, choice in zip(program.segments[first:end], choices, strict=True):
        graph = program.graph(segment).at(program.batch)
        key = f"{segment.graph} {choice}"
        if key not in seen:
            seen[key] = flow(graph, choice, mesh)
        for value, name in zip(graph.shared_values, segment.shared_values, strict=True):
            wishes.setdefault(name, set()).update(_wanted(seen[key], value))
    prologue = stage_prologue(program, first, end).at(program.batch)
    values = prologue.values()
    chosen: dict[str, str] = {}
    layouts: dict[str, Layout] = {}
    for op in reversed(prologue.ops):
        made = _agreeing(op, values, mesh, wishes)
        chosen[op.name] = made.text
        layouts.update((v.name, canonical(layout, False)) for v, layout in zip(op.results, made.results, strict=True))
        for name, layout in zip(op.operands(), made.operands, strict=True):
            wishes.setdefault(name, set()).add(canonical(layout, False))
    shapes = {value.name: value.type.at(program.batch).sizes for value in program.inputs}
    inputs = {
        name: str(_even(_agreed(wishes.get(name, set()), mesh), shapes[name], mesh))
        for name in stage_inputs(program, first, end)
    }
    outputs = tuple(str(layouts[name]) for name in prologue.outputs)
    return inputs, Choice(-1, (), outputs, dict(reversed(chosen.items())))


def _wanted(found: Flow, value: Value) -> set[Layout]:
    return {
        canonical(layout, value.grad)
        for op in found.graph.ops
        for name, layout in zip(op.operands(), found.strategies[op.name].operands, strict=True)
        if name == value.name
    }


def _agreed(wishes: set[Layout], mesh: Mesh) -> Layout:
    only = next(iter(wishes)) if len(wishes) == 1 else invariant(mesh)
    return invariant(mesh) if any(state.kind == "P" for state in only.states) else only


def _even(layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> Layout:
    """Invariant where the layout is uneven: a batch is read in even pieces."""
    return layout if layout.is_even(shape, mesh.sizes) else invariant(mesh)


def _agreeing(op: Op, values: dict[str, Value], mesh: Mesh, wishes: Wishes) -> Strategy:
    """The op's strategy with the layouts of its results' readers, or the one that splits nothing."""
    found = strategies(op, values, mesh)
    for made in found:
        pairs = zip(op.results, made.results, strict=True)
        if all(_agreed(wishes.get(value.name, set()), mesh) == canonical(layout, False) for value, layout in pairs):
            return made
    return found[0]
