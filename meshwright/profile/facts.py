"""What is true of a graph wherever it stands in the chain: places, FLOPs, bytes, and what its backward reads."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.capture.program import SegmentGraph
from meshwright.profile.count import backward_bytes, backward_flops, forward_flops, op_bytes
from meshwright.profile.places import Place, Places, kept_in_place, places
from meshwright.profile.saved import DeviceKind


@dataclass(frozen=True, slots=True)
class Read:
    """What the backward of one op reads: storages, parameters and buffers aside, and auxiliaries of its own."""

    storages: tuple[str, ...]
    auxiliary_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GraphFacts:
    """reads: one per op. `outside`: storages held whatever happens (parameters, buffers and their next values).
    read: all storages that backward reads. handed, returned: inputs and outputs that have a gradient.

    `..._causal_flops`: causal attention at its true half.
    """

    graph: SegmentGraph
    places: Places
    reads: tuple[Read, ...]
    outside: frozenset[str]
    read: frozenset[str]
    handed: frozenset[str]
    returned: frozenset[str]
    arguments: frozenset[str]
    forward_flops: int
    backward_flops: int
    forward_causal_flops: int
    backward_causal_flops: int
    forward_bytes: int
    backward_bytes: int


def graph_facts(
    graph: SegmentGraph, device: DeviceKind, given: dict[str, Place], given_bytes: dict[str, int]
) -> GraphFacts:
    """`graph` has its batch fixed; `given` are the places of its inputs and shared_values."""
    found = places(graph, given, given_bytes, device)
    values = graph.values()
    held = {value.name for value in (*graph.params, *graph.buffers)} | {value for _, value in graph.updates}
    reads = []
    for op in graph.ops:
        kept = kept_in_place(op, values, found)
        operands = op.operands()
        names = [operands[i] for i in kept.operands] + [op.results[i].name for i in kept.results]
        storages = dict.fromkeys(found.of[name].storage for name in names if found.of[name].storage not in held)
        reads.append(Read(tuple(storages), kept.auxiliary_bytes))
    return GraphFacts(
        graph,
        found,
        tuple(reads),
        frozenset(held),
        frozenset(name for read in reads for name in read.storages),
        frozenset(value.name for value in graph.inputs if value.grad),
        frozenset(name for name in graph.outputs if values[name].grad),
        frozenset(value.name for value in graph.arguments()),
        sum(forward_flops(op, values) for op in graph.ops),
        sum(backward_flops(op, values) for op in graph.ops),
        sum(forward_flops(op, values, skip_masked=True) for op in graph.ops),
        sum(backward_flops(op, values, skip_masked=True) for op in graph.ops),
        sum(op_bytes(op, values) for op in graph.ops),
        sum(backward_bytes(op, values) for op in graph.ops),
    )
