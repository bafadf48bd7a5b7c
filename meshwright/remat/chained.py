"""Peaks and seconds of nested orders, played step by step on traced pairs (`schedule.nested`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.capture.program import Program, SegmentGraph
from meshwright.cost.traced.storage import runs_once
from meshwright.generate.joint import label
from meshwright.generate.program import sharded_segments
from meshwright.plan import Plan
from meshwright.plan.order import Steps
from meshwright.profile.operands import type_bytes
from meshwright.remat.curve import RematPoint
from meshwright.remat.traced import Tracer
from meshwright.schedule.nested import drops
from meshwright.schedule.reads import reads_of


@dataclass(frozen=True, slots=True)
class Chained:
    """A chain of segments for nested orders.

    passes: of each segment the way whose forward holds least, for forwards that keep nothing.
    sizes: bytes of every boundary value.
    gradients: of each segment's weights, from its backward on.
    once: segments that must not run forward twice, with the reason.
    """

    program: Program
    graphs: Sequence[SegmentGraph]
    ways: Sequence[Sequence[RematPoint]]
    passes: Sequence[RematPoint]
    sizes: dict[str, int]
    gradients: Sequence[int]
    once: dict[int, str]

    @classmethod
    def of(
        cls,
        program: Program,
        plan: Plan,
        options: Sequence[Sequence[RematPoint]],
        gradients: Sequence[int],
        traced: Tracer,
    ) -> Chained:
        graphs = sharded_segments(program, plan)
        last = len(graphs) - 1
        ways = [[kept for kept in found if kept.chunks == 1 or i == last] for i, found in enumerate(options)]
        passes = [min(found, key=lambda kept: kept.resident_bytes + kept.forward_transient_bytes) for found in ways]
        sizes: dict[str, int] = {}
        once: dict[int, str] = {}
        for index, (segment, graph) in enumerate(zip(program.segments, graphs, strict=True)):
            values = graph.values()
            pairs = zip(segment.outputs, graph.outputs, strict=True)
            sizes.update((name, type_bytes(values[local].type)) for name, local in pairs)
            reasons = [runs_once(node) for node in traced(graph).module.graph.nodes]
            if any(reasons):
                once[index] = next(filter(None, reasons))
        return cls(program, graphs, ways, passes, sizes, gradients, once)

    def kept_inputs(self, index: int, kept: RematPoint) -> list[str]:
        """Boundary values among what a segment saves, by full name."""
        pairs = zip(self.graphs[index].inputs, self.program.segments[index].inputs, strict=True)
        return list(dict.fromkeys(name for value, name in pairs if label(value.name) in kept.saved))

    def bytes_of(self, names: Sequence[str]) -> int:
        return sum(self.sizes[name] for name in names)

    def own_bytes(self, index: int, kept: RematPoint) -> int:
        """Of what it saves, all but the boundary values."""
        return max(0, kept.resident_bytes - self.bytes_of(self.kept_inputs(index, kept)))


@dataclass(frozen=True, slots=True)
class Nested:
    """picked: the way of each segment's forward that saves.
    held_bytes: the most between two steps.
    """

    steps: Steps
    picked: tuple[RematPoint, ...]
    seconds: float
    held_bytes: int
    peak_bytes: int


def played(chained: Chained, steps: Steps, picked: Sequence[RematPoint]) -> Nested:
    """Seconds and bytes of an order, played step by step."""
    segments = chained.program.segments
    gone = drops(steps, reads_of(chained.program))
    there: set[str] = set()
    saved: dict[int, RematPoint] = {}
    weights = peak = most = 0
    seconds = 0.0
    for (kind, index), dropped in zip(steps, gone, strict=True):
        inputs = chained.bytes_of(list(dict.fromkeys(segments[index].inputs)))
        held = _held(chained, there, saved) + weights
        if kind == "backward":
            kept = saved.pop(index)
            peak = max(peak, held + kept.backward_transient_bytes)
            weights += chained.gradients[index]
            seconds += kept.backward_s
        else:
            kept = picked[index] if kind == "forward" else chained.passes[index]
            peak = max(peak, held + kept.resident_bytes + kept.forward_transient_bytes - inputs)
            there |= set(segments[index].outputs)
            seconds += kept.forward_s
            if kind == "forward":
                saved[index] = kept
        there -= {name for one in dropped for name in segments[one].outputs if name != chained.program.loss}
        most = max(most, _held(chained, there, saved) + weights)
    return Nested(steps, tuple(picked), seconds, most, max(peak, most))


def _held(chained: Chained, there: set[str], saved: dict[int, RematPoint]) -> int:
    names = there | {name for index, kept in saved.items() for name in chained.kept_inputs(index, kept)}
    return chained.bytes_of(sorted(names)) + sum(chained.own_bytes(index, kept) for index, kept in saved.items())
