"""Segments whose backward reads no parameter, nor anything that is computed from one: a table that is looked up.

Where a parameter is stored in pieces, nothing has to be gathered for such a backward.
"""

from __future__ import annotations

from meshwright.caches import CACHES
from meshwright.capture.program import Program, SegmentGraph
from meshwright.profile.saved import saved

_MOST = 1024
_known: dict[int, tuple[SegmentGraph, bool]] = CACHES.own({})
"""By graph; each holds its graph, so that no other takes its place."""
_MOST_PROGRAMS = 16
_segments: dict[int, tuple[Program, frozenset[int]]] = CACHES.own({})
"""By Program, in the same way."""


def lookup_segments(program: Program) -> frozenset[int]:
    known = _segments.get(id(program))
    if known is None:
        if len(_segments) >= _MOST_PROGRAMS:
            _segments.clear()
        found = [is_lookup(graph.at(program.batch)) for graph in program.graphs]
        lookups = frozenset(i for i, segment in enumerate(program.segments) if found[segment.graph])
        known = _segments[id(program)] = (program, lookups)
    return known[1]


def is_lookup(graph: SegmentGraph) -> bool:
    """Of a graph whose batch is fixed."""
    found = _known.get(id(graph))
    if found is None:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[id(graph)] = (graph, bool(graph.params) and not _reads(graph))
    return found[1]


def _reads(graph: SegmentGraph) -> bool:
    """Whether what backward keeps, on any kind of device, has to do with a parameter."""
    values, derived = graph.values(), {value.name for value in graph.params}
    for op in graph.ops:
        operands = op.operands()
        if derived.isdisjoint(operands):
            continue
        derived.update(value.name for value in op.results)
        for kept in (saved(op, values, "cpu"), saved(op, values, "cuda")):
            if kept.results or kept.auxiliary_bytes or any(operands[i] in derived for i in kept.operands):
                return True
    return False
