"""What is left of an op's seconds where a compiler writes it into one kernel with its neighbours.

A search prices ops one by one. What an op takes compiled depends on its neighbours in the graph and not on how it is
sharded: of the bytes that it reads and writes alone, those count that come from or go to ops with kernels of their own,
or leave the segment. The rest stays in registers, backward as forward. Plans are predicted by their compiled pairs
(`cost.traced.kernels`), whatever a search took them for.
"""

from __future__ import annotations

from meshwright.capture.program import Op, SegmentGraph
from meshwright.profile.count import RECURRENT, is_view, op_kind
from meshwright.profile.mixture import MIXTURES
from meshwright.profile.operands import packet, type_bytes

OWN_KERNELS = frozenset({"sort", "argsort", "topk", "batch_norm", "instance_norm", "group_norm"}) | MIXTURES | RECURRENT


def fused_shares(graph: SegmentGraph) -> dict[str, float]:
    """By op's name; ops with kernels of their own take all of their seconds."""
    values = graph.values()
    made = {value.name: op for op in graph.ops for value in op.results}
    read = _readers(graph)
    shares = {}
    for op in graph.ops:
        if not _fuses(op):
            shares[op.name] = 1.0
            continue
        operands = [name for name in dict.fromkeys(op.operands()) if name in values]
        sizes = {name: type_bytes(values[name].type) for name in (*operands, *(value.name for value in op.results))}
        moved = sum(sizes[name] for name in operands if not _in_registers(name, made))
        moved += sum(sizes[value.name] for value in op.results if read.get(value.name, True))
        shares[op.name] = moved / total if (total := sum(sizes.values())) else 1.0
    return shares


def _fuses(op: Op) -> bool:
    name = packet(op.target)
    return op_kind(op) in ("memory", "view") and name not in OWN_KERNELS and "pool" not in name


def _in_registers(name: str, made: dict[str, Op]) -> bool:
    """Whether a fused op makes the value, views followed."""
    op = made.get(name)
    while op is not None and is_view(op) and op.operands():
        op = made.get(op.operands()[0])
    return op is not None and _fuses(op)


def _readers(graph: SegmentGraph) -> dict[str, bool]:
    """Of each value that an op reads or a segment hands on: whether it must be memory for a reader, views followed."""
    kept = {value for _, value in graph.updates}
    found = dict.fromkeys((*graph.outputs, *kept), True)
    for op in reversed(graph.ops):
        stored = any(found.get(value.name, False) for value in op.results) if is_view(op) else not _fuses(op)
        for position, name in enumerate(op.operands()):
            own = stored if not is_view(op) or position == 0 else False
            found[name] = found.get(name, False) or own
    return found
