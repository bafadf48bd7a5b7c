"""The whole plan as generated parts: a pair per distinct (choice, common layouts), the prologue, the instructions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.capture.program import Program, SegmentGraph, Value
from meshwright.capture.sizes import BatchSize
from meshwright.cluster import Mesh
from meshwright.errors import PlanError, RunError, VerifyError, counted
from meshwright.generate.chunk import ChunkedPair, check_chunkable, chunked
from meshwright.generate.chunk_inner import ChunkedBackward, check_inner_chunks, chunked_backward
from meshwright.generate.pair import SegmentPair, compiled_pair, make_pair
from meshwright.generate.run import Member, Run, make_run
from meshwright.generate.shard import shard
from meshwright.layout import Layout
from meshwright.plan import Plan, Stage
from meshwright.plan.stages import stage_prologue
from meshwright.price.flow import flow
from meshwright.profile.lookup import lookup_segments

Pair = SegmentPair | ChunkedPair | ChunkedBackward
At = tuple[int, ...] | None
"""A rank's coordinates in its stage's mesh; ranks differ only where a size is cut unevenly. The first rank's, whose
pieces are the largest, where none are given."""


@dataclass(frozen=True, slots=True)
class Generated:
    """One stage's: its part of the prologue; sharded and pairs by segment, shared objects where segments are alike.
    runs: segments that are called together; the pairs of these are there too, and not compiled."""

    prologue: SegmentGraph
    sharded: dict[int, SegmentGraph]
    pairs: dict[int, Pair]
    runs: tuple[Run, ...] = ()


def sharded_prologue(program: Program, plan: Plan, stage: Stage | None = None, at: At = None) -> SegmentGraph:
    """What a stage makes of the prologue; of a plan of one stage, all of it."""
    here = stage or plan.stages[0]
    graph = stage_prologue(program, here.first, here.end).at(plan.microbatch)
    shared_values = {value.name: Layout.parse(here.inputs[value.name]) for value in graph.shared_values}
    made = flow(graph, here.prologue, here.mesh, shared_values, at)
    return shard(made, tuple(map(Layout.parse, here.prologue.outputs)))


def sharded_segment(program: Program, plan: Plan, index: int, batch: int, at: At = None) -> SegmentGraph:
    """One rank's graph of one segment at this batch. Raises PlanError where ranks would have samples of several
    numbers: those are cut evenly."""
    choice, shared_values, mesh = plan.choice(index), plan.common_layouts(program, index), plan.stage_of(index).mesh
    graph = program.graph(program.segments[index])
    layouts = shared_values | {
        value.name: Layout.parse(text) for value, text in zip(graph.inputs, choice.inputs, strict=True)
    }
    for value in (*graph.inputs, *graph.shared_values):
        _check_samples(value, layouts[value.name], mesh, batch)
    return shard(flow(graph.at(batch), choice, mesh, shared_values, at), tuple(map(Layout.parse, choice.outputs)))


def _check_samples(value: Value, layout: Layout, mesh: Mesh, batch: int) -> None:
    for dim, size in enumerate(value.type.shape):
        pieces = prod(mesh.sizes[axis] for axis in layout.sharding(dim))
        if isinstance(size, BatchSize) and size.at(batch) % pieces:
            given = f"micro-batches of {batch} samples, with {value.name} in {layout}"
            expected = f"samples of which each of {pieces} ranks has as many"
            raise PlanError(given, expected, "change the batch or the number of micro-batches")


def sharded_segments(program: Program, plan: Plan, places: Sequence[At] = ()) -> tuple[SegmentGraph, ...]:
    """One rank's graph of each segment; alike segments of a stage share one object. places: in each stage's mesh."""
    if len(plan.segments) != len(program.segments):
        raise RunError(
            f"the plan has {counted(len(plan.segments), 'segment')}", f"{len(program.segments)}, as the model has"
        )
    found = _sharded(program, plan, range(len(program.segments)))
    for stage, at in zip(plan.stages, places, strict=False):
        if at is not None:
            found |= _sharded(program, plan, stage.segments, at)
    return tuple(found.values())


def _sharded(program: Program, plan: Plan, indices: Iterable[int], at: At = None) -> dict[int, SegmentGraph]:
    made: dict[object, SegmentGraph] = {}
    found = {}
    for index in indices:
        shared_values = plan.common_layouts(program, index)
        mesh = plan.stage_of(index).mesh
        key = (plan.segments[index], tuple(shared_values.items()), program.segments[index].scalars, mesh)
        if key not in made:
            made[key] = sharded_segment(program, plan, index, plan.microbatch, at)
        found[index] = made[key]
    return found


def _check_lookups(program: Program, plan: Plan, pairs: Mapping[int, Pair]) -> None:
    """Backwards for which nothing is gathered read nothing that would have to be."""
    for index in lookup_segments(program) & pairs.keys():
        pair, names = pairs[index], program.segments[index].params
        if isinstance(pair, SegmentPair):
            own = dict(zip((value.name for value in pair.graph.params), names, strict=True))
            wrong = [own[name] for name in pair.backward_params if plan.parameters[own[name]].reshard_after_forward]
            if wrong:
                raise VerifyError(f"backward of {program.segments[index].name} reads {wrong[0]}", "no parameter")


def generate(
    program: Program,
    plan: Plan,
    device: str = "cpu",
    compiled: bool = False,
    stage: Stage | None = None,
    joined: Sequence[tuple[int, int]] = (),
    at: At = None,
) -> Generated:
    """What a stage runs; all of a plan of one. `compiled`: each pair by inductor, once per distinct one. `joined`:
    first and end of the segments that are called together. `at`: the rank that will run it."""
    here = stage or plan.stages[0]
    segments = _sharded(program, plan, here.segments, at)
    inside = {index for first, end in joined for index in range(first, end)}
    made: dict[tuple[int, bool], Pair] = {}
    pairs: dict[int, Pair] = {}
    for index, graph in segments.items():
        key = (id(graph), compiled and index not in inside)
        if key not in made:
            made[key] = _pair(program, plan, index, graph, device, key[1], at)
        pairs[index] = made[key]
    if len(plan.stages) == 1 and not plan.order:
        _check_lookups(program, plan, pairs)
    prologue = sharded_prologue(program, plan, here, at)
    runs = [_run(program, plan, pairs, place, device, compiled) for place in joined]
    return Generated(prologue, segments, pairs, tuple(runs))


def _run(
    program: Program, plan: Plan, pairs: Mapping[int, Pair], place: tuple[int, int], device: str, compiled: bool
) -> Run:
    members = []
    for index in range(*place):
        choice, pair = plan.choice(index), pairs[index]
        assert isinstance(pair, SegmentPair), "what runs in chunks is not joined"
        members.append(Member(pair, choice.recompute, choice.keep))
    return make_run(program, place[0], members, device, compiled)


def _pair(
    program: Program, plan: Plan, index: int, graph: SegmentGraph, device: str, compiled: bool, at: At = None
) -> Pair:
    choice = plan.choice(index)

    def made(local: SegmentGraph) -> SegmentPair:
        make = compiled_pair if compiled else make_pair
        return make(local, device, choice.recompute, choice.keep)

    if choice.chunks == 1:
        return made(graph)
    if index != len(program.segments) - 1:
        check_inner_chunks(program, index, choice.chunks, plan.microbatch)
        part = sharded_segment(program, plan, index, plan.microbatch // choice.chunks, at)
        return chunked_backward(made(graph), made(part), choice.chunks)
    found = check_chunkable(program, choice.chunks, plan.microbatch)
    part = sharded_segment(program, plan, index, plan.microbatch // choice.chunks, at)
    return chunked(graph, made(part), choice.chunks, found)
