"""Indices that follow from sizes alone (positions): computed at capture, and refused where a table has too few rows.

On fake tensors an embedding of 2,048 positions in a table of 1,024 looks fine; on real ones it is out of range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from meshwright.capture.execute import run_graph
from meshwright.capture.op import Op, live
from meshwright.capture.program import Program, SegmentGraph
from meshwright.errors import ModelError

_INDEXED = ("aten.embedding.default",)
"""Ops that take rows of a table, their first operand, by numbers, their second."""
_CPU = torch.device("cpu")


def check_positions(program: Program) -> None:
    """Raises ModelError where a table is indexed beyond its rows, whatever the batch holds."""
    prologue = program.prologue.at(program.batch)
    wanted = {value.name for op in prologue.ops for value in op.results if value.type.dtype.startswith("int")}
    known = _constants(prologue, wanted, {})
    for index, graph in enumerate(program.graphs):
        segment = next(one for one in program.segments if one.graph == index)
        shared_values = zip((value.name for value in graph.shared_values), segment.shared_values, strict=True)
        given = {local: known[name] for local, name in shared_values if name in known}
        _check(graph.bind(segment.scalars).at(program.batch), given)


def _check(graph: SegmentGraph, given: Mapping[str, Tensor]) -> None:
    reads = [(op, op.operands()[0], op.operands()[1]) for op in graph.ops if op.target in _INDEXED]
    found = _constants(graph, {indices for _, _, indices in reads}, given)
    values = graph.values()
    for op, table, indices in reads:
        rows = values[table].type.shape[0]
        if indices not in found or not found[indices].numel() or not isinstance(rows, int):
            continue
        lowest, highest = (int(end) for end in found[indices].aminmax())
        if lowest < 0 or highest >= rows:
            raise ModelError(
                f"{op.module or op.name} has {rows} rows and is read at {highest if highest >= rows else lowest}",
                f"positions from 0 to {rows - 1}",
                "give shorter sequences, or build the model with more positions",
            )


def _is_exact(op: Op) -> bool:
    """Whether it makes whole numbers, always the same."""
    chance = any(word in op.target for word in ("rand", "empty", "bernoulli", "multinomial"))
    return op.target.startswith("aten.") and not chance and all(v.type.dtype.startswith("int") for v in op.results)


def _constants(graph: SegmentGraph, wanted: set[str], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of the wanted values that depend on nothing but what is given."""
    made = set(given)
    ops: list[Op] = []
    for op in graph.ops:
        if _is_exact(op) and all(name in made for name in op.uses()):
            made |= {value.name for value in op.results}
            ops.append(op)
    needed = wanted & made
    if not needed:
        return {}
    found = run_graph(replace(graph, ops=tuple(live(ops, needed))), given, _CPU)
    return {name: found[name] for name in needed}
