"""Collectives of one rank in a step of a plan, one by one, which runs are checked against."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.capture.program import Program
from meshwright.generate.chunk import check_chunkable
from meshwright.generate.communicates import collectives_in, replayed
from meshwright.generate.cut import Cut, cut_at
from meshwright.generate.program import sharded_segment
from meshwright.layout import Collective, Layout
from meshwright.plan import Plan
from meshwright.plan.order import passes_of
from meshwright.price.buckets import parameter_collectives
from meshwright.price.flow import flow
from meshwright.price.weigh import count_collectives
from meshwright.remat.traced import traced_for

COUNT_BYTES = 8
"""Of a number of targets."""


def collectives_of(plan: Plan, program: Program) -> tuple[Collective, ...]:
    """Every conversion and lowering of every segment, every gather and reduction, in no particular order."""
    found: list[Collective] = []
    alike: dict[object, list[Collective]] = {}
    for index, segment in enumerate(program.segments):
        shared_values = plan.common_layouts(program, index)
        passes = passes_of(plan.order, index)
        key = (segment.graph, plan.segments[index], id(plan.stage_of(index)), tuple(shared_values.items()), passes)
        if key not in alike:
            alike[key] = [
                one for part, times in plan.cut for one in _inside(part, program, index, shared_values, times)
            ]
        found += alike[key]
    found += parameter_collectives(plan, program)
    found += count_collectives(plan, program)
    return tuple(found)


def _inside(
    plan: Plan, program: Program, index: int, shared_values: dict[str, Layout], micro: int
) -> Iterator[Collective]:
    """Collectives of one segment in `micro` micro-batches, forwards as often as the order has them."""
    forwards = micro * (1 + passes_of(plan.order, index))
    for forward, some in halves(plan, program, index, shared_values):
        yield from some * (forwards if forward else micro)


def halves(
    plan: Plan, program: Program, index: int, shared_values: dict[str, Layout]
) -> Iterator[tuple[bool, tuple[Collective, ...]]]:
    """(is in forward, collectives) of one segment in one micro-batch: conversions, lowerings, recomputation.

    All of a chunked tail counts as forward.
    """
    choice, last = plan.choice(index), index == len(program.segments) - 1
    if choice.chunks > 1 and last:
        yield True, tuple(_in_chunks(plan, program, index))
        return
    inside = list(computing(plan, program, index, shared_values))
    yield from inside
    if choice.recompute and any(some for forward, some in inside if forward):
        yield False, tuple(replayed(cut_of(plan, program, index, plan.microbatch).halves))


def computing(
    plan: Plan, program: Program, index: int, shared_values: dict[str, Layout]
) -> Iterator[tuple[bool, tuple[Collective, ...]]]:
    """(is in forward, collectives) of one segment in one micro-batch: conversions and lowerings."""
    graph = program.graph(program.segments[index]).at(plan.microbatch)
    run = flow(graph, plan.choice(index), plan.stage_of(index).mesh, shared_values)
    carries = {op.name: any(value.grad for value in op.results) for op in graph.ops}
    values = graph.values()
    for name, made in run.strategies.items():
        yield True, made.collectives_forward
        yield False, made.collectives_backward if carries[name] else ()
    for step in run.moves.values():
        yield True, step.conversion.forward
        yield False, step.conversion.backward if values[step.value].grad else ()


def _in_chunks(plan: Plan, program: Program, index: int) -> list[Collective]:
    """Collectives of a chunked tail. Where targets are counted, ranks sum the numbers of each chunk."""
    choice = plan.choice(index)
    part = sharded_segment(program, plan, index, plan.microbatch // choice.chunks)
    halves = cut_of(plan, program, index, plan.microbatch // choice.chunks).halves
    found = (collectives_in(halves.first) + collectives_in(halves.second)) * choice.chunks
    averaging = check_chunkable(program, choice.chunks, plan.microbatch)
    rows = [str(dict(op.kwargs).get("rows", "")) for op in part.ops if op.name == averaging.op]
    if averaging.kind == "count" and rows[0]:
        found.append(Collective("all_reduce", rows[0], COUNT_BYTES * choice.chunks))
    return found


def cut_of(plan: Plan, program: Program, index: int, batch: int) -> Cut:
    """The cut of a segment's joint graph at this batch."""
    choice, device = plan.choice(index), plan.stage_of(index).mesh.device
    joint = traced_for(device)(sharded_segment(program, plan, index, batch))
    return cut_at(joint, choice.recompute, choice.keep, run=False)
