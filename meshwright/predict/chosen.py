"""Rematerialisation of a plan of one stage, as RematPoints of its segments' traced pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.capture.program import Program, SegmentGraph
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import storage_bytes
from meshwright.errors import PlanError
from meshwright.generate.chunk import check_chunkable
from meshwright.generate.chunk_inner import check_inner_chunks
from meshwright.generate.cut import cut_at, read_by_backward
from meshwright.generate.joint import Joint, label
from meshwright.generate.program import sharded_segment, sharded_segments
from meshwright.plan import Choice, Plan
from meshwright.predict.ways import bare, with_choices
from meshwright.remat.curve import RematPoint
from meshwright.remat.inner import inner_way
from meshwright.remat.tail import tail_way
from meshwright.remat.traced import Tracer, traced_for
from meshwright.remat.way import cut_way


@dataclass(frozen=True, slots=True)
class Chosen:
    """RematPoints of one segment: `whole` keeps everything, `way` is the plan's."""

    whole: RematPoint
    way: RematPoint

    @property
    def recompute_s(self) -> float:
        """Seconds by which the plan's way is slower."""
        return max(0.0, self.way.seconds - self.whole.seconds)


def chosen_ways(plan: Plan, program: Program) -> list[Chosen]:
    """`Chosen` of every segment; equal segments are cut once."""
    return _Ways(plan, program).found()


def passing_ways(plan: Plan, program: Program) -> list[RematPoint]:
    """Of every segment, the way that keeps nothing it can recompute: a forward that saves nothing."""
    ways = _Ways(plan, program)
    known: dict[int, RematPoint] = {}
    for graph in ways.graphs:
        if id(graph) not in known:
            joint = ways.traced(graph)
            recompute = tuple(joint.names[node] for node in read_by_backward(joint))
            known[id(graph)] = cut_way(joint, ways.costs, recompute, ())
    return [known[id(graph)] for graph in ways.graphs]


class _Ways:
    def __init__(self, plan: Plan, program: Program) -> None:
        every = range(len(program.segments))
        self.plan, self.program = plan, program
        self.bare = with_choices(plan, [bare(plan.choice(index)) for index in every])
        self.graphs: Sequence[SegmentGraph] = sharded_segments(program, self.bare)
        device = plan.mesh.device
        self.traced: Tracer = traced_for(device)
        self.costs = NodeCosts(device, plan.compile, plan.mesh)
        self.known: dict[object, RematPoint] = {}
        self.saves: dict[object, frozenset[str]] = {}

    def found(self) -> list[Chosen]:
        choices = [self.plan.choice(index) for index in range(len(self.graphs))]
        saved = [self._saved(graph, choice) for graph, choice in zip(self.graphs, choices, strict=True)]
        found = []
        for index, (choice, held) in enumerate(zip(choices, self._held(saved), strict=True)):
            whole = self._cut(index, bare(choice), held)
            found.append(Chosen(whole, whole if choice == bare(choice) else self._way(index, choice, held)))
        return found

    def _saved(self, graph: SegmentGraph, choice: Choice) -> frozenset[str]:
        """Saved values of a segment; none of the chunked tail, which keeps gradients."""
        if choice.chunks > 1 and graph is self.graphs[-1]:
            return frozenset()
        key = (id(graph), choice.recompute, choice.keep)
        if key not in self.saves:
            self.saves[key] = frozenset(cut_at(self.traced(graph), choice.recompute, choice.keep, run=False).saved)
        return self.saves[key]

    def _held(self, saved: Sequence[frozenset[str]]) -> list[tuple[str, ...]]:
        """Of each segment, the saved values that another segment keeps as long.

        These are outputs that the next segment saves, and inputs that an earlier one saves.
        """
        found: list[tuple[str, ...]] = []
        kept: set[str] = set()
        segments = self.program.segments
        reads = [self._reads(index, saved[index]) for index in range(len(self.graphs))]
        for index, (segment, graph) in enumerate(zip(segments, self.graphs, strict=True)):
            after = reads[index + 1] if index + 1 < len(reads) else {}
            outputs = [local for name, local in zip(segment.outputs, graph.outputs, strict=True) if name in after]
            inputs = [local for name, local in reads[index].items() if name in kept]
            found.append((*outputs, *inputs))
            kept |= set(reads[index])
        return found

    def _reads(self, index: int, saved: frozenset[str]) -> dict[str, str]:
        """Saved inputs of a segment: name in the program -> local name."""
        pairs = zip(self.program.segments[index].inputs, self.graphs[index].inputs, strict=True)
        return {name: label(value.name) for name, value in pairs if label(value.name) in saved}

    def _cut(self, index: int, choice: Choice, held: tuple[str, ...]) -> RematPoint:
        graph = self.graphs[index]
        key = (id(graph), choice.recompute, choice.keep, held)
        if key not in self.known:
            self.known[key] = cut_way(self.traced(graph), self.costs, choice.recompute, choice.keep, held)
        return self.known[key]

    def _way(self, index: int, choice: Choice, held: tuple[str, ...]) -> RematPoint:
        graph, last = self.graphs[index], index == len(self.graphs) - 1
        key = (id(graph), choice.recompute, choice.keep, choice.chunks, choice.offload, held)
        if key not in self.known:
            if choice.chunks > 1:
                self.known[key] = self._tail(index, choice) if last else self._inner(index, choice, held)
            else:
                self.known[key] = _away(self.traced(graph), choice.offload, self._cut(index, choice, held))
        return self.known[key]

    def _tail(self, index: int, choice: Choice) -> RematPoint:
        check_chunkable(self.program, choice.chunks, self.plan.microbatch)
        part = sharded_segment(self.program, self.bare, index, self.plan.microbatch // choice.chunks)
        found = tail_way(self.graphs[index], part, choice.chunks, self.costs, self.traced)
        if (found.recompute, found.keep) != (choice.recompute, choice.keep):
            raise PlanError(
                f"the last layer recomputes {list(choice.recompute)} in {choice.chunks} chunks",
                f"{list(found.recompute)}, which is fastest",
                "undo the edit, or plan again",
            )
        return found

    def _inner(self, index: int, choice: Choice, held: tuple[str, ...]) -> RematPoint:
        check_inner_chunks(self.program, index, choice.chunks, self.plan.microbatch)
        part = self.traced(sharded_segment(self.program, self.bare, index, self.plan.microbatch // choice.chunks))
        whole = self.traced(self.graphs[index])
        return inner_way(whole, part, self._cut(index, choice, held), choice.chunks, self.costs)


def _away(joint: Joint, names: tuple[str, ...], kept: RematPoint) -> RematPoint:
    """The way with these values offloaded; seconds of copies are those of the simulator's lanes."""
    if not names:
        return kept
    moved = sum(storage_bytes(node) for node, name in joint.names.items() if name in names)
    return replace(kept, offload=names, offloaded_bytes=moved, resident_bytes=kept.resident_bytes - moved)
