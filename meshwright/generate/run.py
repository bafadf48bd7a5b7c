"""A run of segments as one: their graphs joined, traced, cut and compiled together, for one call in place of many.

What is kept for backward is what its segments' pairs keep, no more and no less: what one segment hands to the next is
kept where the next one's backward reads it, though the one that made it could make it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import fx

from meshwright.capture.program import Op, Program, Ref, Segment, SegmentGraph, Value
from meshwright.cost.traced.storage import base, outputs_of
from meshwright.generate.joint import label
from meshwright.generate.pair import SegmentPair, compiled_pair, make_pair


@dataclass(frozen=True, slots=True)
class Member:
    """One of a run's segments: its pair, and what its plan says of it."""

    pair: SegmentPair
    recompute: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Segments first to end, less the last. segment: what the joined graph's arguments are bound to. reads: the values
    from outside, once for each of its segments that reads them."""

    first: int
    end: int
    segment: Segment
    reads: tuple[str, ...]
    pair: SegmentPair


@dataclass(frozen=True, slots=True)
class Joined:
    """recompute, keep: what the segments were told, by the joined graph's names."""

    segment: Segment
    graph: SegmentGraph
    recompute: tuple[str, ...]
    keep: tuple[str, ...]
    reads: tuple[str, ...]


def make_run(program: Program, first: int, members: Sequence[Member], device: str, compiled: bool) -> Run:
    """members: the run's segments, in order."""
    joined = join(program, first, members)
    make = compiled_pair if compiled else make_pair
    pair = make(joined.graph, device, joined.recompute, joined.keep)
    return Run(first, first + len(members), joined.segment, joined.reads, pair)


def join(program: Program, first: int, members: Sequence[Member]) -> Joined:
    """The graphs one after the other. Names stand for places, so runs of alike segments have equal graphs."""
    segments = program.segments[first : first + len(members)]
    end = first + len(members)
    outside = {name for segment in program.segments[end:] for name in segment.inputs} | {program.loss}
    made = _Joining()
    for place, (segment, member) in enumerate(zip(segments, members, strict=True)):
        made.add(f"s{place}_", segment, member)
    outputs = {n: made.values[n] for segment in segments for n in segment.outputs if n in outside}
    bound = Segment(
        f"{segments[0].name} to {segments[-1].name}", -1, tuple(made.inputs), tuple(made.shared_values),
        tuple(made.params), tuple(made.buffers), tuple(outputs),
    )  # fmt: skip
    graph = SegmentGraph(
        tuple(made.inputs.values()), tuple(made.shared_values.values()), tuple(made.params.values()),
        tuple(made.buffers.values()), tuple(made.ops), tuple(outputs.values()), tuple(made.updates),
    )  # fmt: skip
    recompute = tuple(name for name in made.recompute if name not in made.handed)
    return Joined(bound, graph, recompute, tuple(dict.fromkeys((*made.keep, *made.handed))), tuple(made.reads))


class _Joining:
    """Arguments by the Program's names; values: what the run has made, by the Program's names; storages: the name of
    the memory of each. handed: memory that a later segment keeps as something it was given."""

    def __init__(self) -> None:
        self.inputs: dict[str, Value] = {}
        self.shared_values: dict[str, Value] = {}
        self.params: dict[str, Value] = {}
        self.buffers: dict[str, Value] = {}
        self.values: dict[str, str] = {}
        self.storages: dict[str, str] = {}
        self.ops: list[Op] = []
        self.updates: list[tuple[str, str]] = []
        self.recompute: list[str] = []
        self.keep: list[str] = []
        self.handed: dict[str, None] = {}
        self.reads: list[str] = []

    def add(self, prefix: str, segment: Segment, member: Member) -> None:
        pair, own = member.pair, dict[str, str]()
        graph = pair.graph
        for value, name in zip(graph.inputs, segment.inputs, strict=True):
            if name in self.values:
                own[value.name] = self.values[name]
                if label(value.name) in pair.saved:
                    self.handed[self.storages[own[value.name]]] = None
            else:
                own[value.name] = _bind(self.inputs, prefix, name, value)
        for kind, names in (
            ("shared_values", segment.shared_values),
            ("params", segment.params),
            ("buffers", segment.buffers),
        ):
            for value, name in zip(getattr(graph, kind), names, strict=True):
                own[value.name] = _bind(getattr(self, kind), prefix, name, value)
        self.reads += [name for name in dict.fromkeys(segment.inputs) if name not in self.values]
        for op in graph.ops:
            self.ops.append(_renamed(op, prefix, own))
        self.updates += [(own[buffer], own[value]) for buffer, value in graph.updates]
        given = {label(value.name) for value in graph.arguments()}
        self.recompute += [prefix + name for name in member.recompute if name not in given]
        self.keep += [prefix + name for name in member.keep if name not in given]
        given_names = {label(value.name): own[value.name] for value in graph.arguments()}
        for name, local in zip(segment.outputs, graph.outputs, strict=True):
            self.values[name] = own[local]
            storage = _storage_of(pair, local)
            handed_on = given_names.get(storage, prefix + storage)
            self.storages[own[local]] = self.storages.get(handed_on, handed_on)


def _bind(bound: dict[str, Value], prefix: str, name: str, value: Value) -> str:
    """An argument that several of the segments read stands once; a gradient comes for it if one of them gives one."""
    known = bound.get(name)
    if known is None:
        bound[name] = known = replace(value, name=prefix + value.name)
    elif value.grad and not known.grad:
        bound[name] = replace(known, grad=True)
    return known.name


def _renamed(op: Op, prefix: str, own: dict[str, str]) -> Op:
    """The op with this segment's names, its results added to them."""
    moved = op.map(lambda leaf: Ref(own[leaf.name]) if isinstance(leaf, Ref) else leaf)
    own.update((value.name, prefix + value.name) for value in op.results)
    return replace(moved, results=tuple(replace(value, name=prefix + value.name) for value in op.results))


def _storage_of(pair: SegmentPair, output: str) -> str:
    """Under which name the memory of an output goes."""
    node = outputs_of(pair.joint.module)[pair.graph.outputs.index(output)]
    return pair.joint.names[base(node)] if isinstance(node, fx.Node) else output
