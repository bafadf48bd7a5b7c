"""The sharded segment: the same kind of graph, with local sizes, the strategies' lowerings, and conversions as ops.

It runs with `run_graph`, prints with `code`, and is what the joint graph is traced from.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Op, Ref, SegmentGraph, TensorType, Value
from meshwright.cluster import Mesh
from meshwright.layout import Layout
from meshwright.price.flow import Flow, Move, canonical, invariant

CONVERT = "meshwright.layout.convert:convert"


def shard(found: Flow, outputs: tuple[Layout, ...]) -> SegmentGraph:
    """The graph of the rank that the flow was read for. `outputs`: the layouts in which it hands its results over."""
    graph, values = found.graph, found.graph.values()
    ops: list[Op] = []
    names: dict[tuple[str, Layout], str] = {}

    def want(name: str, layout: Layout) -> str:
        """The name of a value in this layout; the conversion is emitted when it is first wanted."""
        value = values[name]
        target = canonical(layout, value.grad)
        if target == found.layouts[name]:
            return name
        if (name, target) not in names:
            ops.append(_conversion(found, value, found.moves[name, target], len(names)))
            names[name, target] = ops[-1].name
        return names[name, target]

    for op in graph.ops:
        made = found.strategies[op.name]
        names_here = iter([want(name, layout) for name, layout in zip(op.operands(), made.operands, strict=True)])
        lowered = made.lowering.map(lambda leaf, here=names_here: Ref(next(here)) if isinstance(leaf, Ref) else leaf)
        results = tuple(replace(new, grad=old.grad) for new, old in zip(lowered.results, op.results, strict=True))
        ops.append(replace(lowered, results=results, module=op.module))
    returned = tuple(want(name, layout) for name, layout in zip(graph.outputs, outputs, strict=True))
    updates = tuple((buffer, want(name, invariant(found.mesh))) for buffer, name in graph.updates)

    def local(kind: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replace(value, type=_local_type(found, value, found.layouts[value.name])) for value in kind)

    inputs, shared_values, params, buffers = map(
        local, (graph.inputs, graph.shared_values, graph.params, graph.buffers)
    )
    sharded = SegmentGraph(inputs, shared_values, params, buffers, tuple(ops), returned, updates)
    sharded.verify()
    return sharded


def _local_type(found: Flow, value: Value, layout: Layout) -> TensorType:
    return TensorType(layout.local_shape(value.type.sizes, found.mesh.sizes, found.at), value.type.dtype)


def _conversion(found: Flow, value: Value, step: Move, number: int) -> Op:
    result = Value(f"{value.name}_as{number}", _local_type(found, value, step.target), value.grad)
    args = (Ref(value.name), step.source, step.target, found.mesh)
    at = () if found.at is None or _is_even(step, value, found.mesh) else (("at", found.at),)
    return Op(CONVERT, args, (("shape", value.type.sizes), ("grad", value.grad), *at), (result,))


def _is_even(step: Move, value: Value, mesh: Mesh) -> bool:
    """Whether all ranks do the same: pieces are alike at every turn of the way."""
    layouts = (step.source, *(one.target for one in step.conversion.steps))
    return all(layout.is_even(value.type.sizes, mesh.sizes) for layout in layouts)
