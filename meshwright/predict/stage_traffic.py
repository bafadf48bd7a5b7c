"""Traffic of a rank of a pipeline in a step, collectives and messages, which runs are checked against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from meshwright.capture.averaging import averaging
from meshwright.capture.program import ITEM_BYTES, Program
from meshwright.cluster import collective_s
from meshwright.layout import Collective
from meshwright.layout.crossmesh import Route, volume
from meshwright.plan import Plan
from meshwright.plan.records import Traffic
from meshwright.predict.traffic import computing
from meshwright.price.buckets import segment_collectives
from meshwright.price.weigh import COUNT_BYTES, count_collectives
from meshwright.schedule.edges import Edge, Edges, pair_of
from meshwright.schedule.of_plan import plan_pipeline
from meshwright.schedule.tied_weights import transfers

ALL = "all ranks"
"""Where an axis is named: of the whole job."""


def rank_traffic(plan: Plan, program: Program, rank: int) -> Counter[Collective]:
    """All traffic but that of recomputation. A message's axis names the rank at its other end."""
    number = plan.stage_at(rank)
    found: Counter[Collective] = Counter()
    for stage in plan.groups[number]:
        for index in stage.segments:
            for part, times in plan.cut:
                for _, some in computing(part, program, index, part.common_layouts(program, index)):
                    found.update(some * times)
            found.update(segment_collectives(plan, program, index))
    if plan.groups[number][-1].end == len(program.segments):
        found.update(count_collectives(plan, program))
    found.update(_broadcasts(plan, program))
    for part, times in plan.cut:
        found.update(_messages(part, program, number, rank, times))
    found.update(_tied_replicas(plan, program, rank))
    return found


def stage_traffic(plan: Plan, program: Program, number: int) -> tuple[Traffic, ...]:
    """Traffic of the first rank of a physical stage, most bytes first."""
    counted = rank_traffic(plan, program, plan.groups[number][0].mesh.ranks[0])
    found = [Traffic(one.kind, one.axis, one.bytes, count) for one, count in counted.items()]
    return tuple(sorted(found, key=lambda one: (-one.bytes * one.count, one.kind, one.axis)))


def communication_s(plan: Plan, number: int, traffic: Sequence[Traffic]) -> float:
    """Seconds of a stage's traffic in sequence. Its runs of segments may name their axes differently."""
    axes = {axis.name: axis for stage in plan.groups[number] for axis in stage.mesh.axes + stage.mesh.flat}
    pair, own = pair_of(plan), plan.groups[number][0].mesh.ranks[0]
    total_s = 0.0
    for one in traffic:
        if one.kind in ("send", "receive"):
            other = int(one.axis.split()[1])
            latency_s, rate = pair(own, other) if one.kind == "send" else pair(other, own)
            total_s += one.count * (latency_s + one.bytes / rate)
        elif one.axis != ALL:
            total_s += one.count * collective_s(one.kind, one.bytes, axes[one.axis])
    return total_s


def _broadcasts(plan: Plan, program: Program) -> Iterator[Collective]:
    """Broadcasts of the last stage: the loss, and the weights of micro-batches where targets are counted."""
    last = program.graph(program.segments[-1]).at(plan.microbatch)
    yield Collective("broadcast", ALL, last.values()[last.outputs[0]].type.itemsize)
    if plan.microbatches > 1 and averaging(program).kind == "count":
        yield Collective("broadcast", ALL, COUNT_BYTES * plan.microbatches)


def _messages(plan: Plan, program: Program, number: int, rank: int, times: int) -> Iterator[Collective]:
    edges = Edges(plan, program, plan_pipeline(plan, program), number)
    for (_, source, _), messages in edges.messages.items():
        for edge in messages:
            yield from _both_ways(edge, rank, times)
            if edge.value.grad and source != number:
                yield from edge.target.reduction(edge.shape, edge.value.type.itemsize).backward * times
    for name in {edge.name for some in edges.messages.values() for edge in some if edge.value.grad}:
        if edges.number[edges.made[name]] == number:
            form, value = edges.form(name, number), edges.value(name)
            yield from form.spreading(value.type.sizes, value.type.itemsize).backward * times
    for edge in edges.local.values():
        if edge.value.grad:
            yield from edge.target.reduction(edge.shape, edge.value.type.itemsize).backward * times
        if not edge.alike:
            yield from _both_ways(edge, rank, times)


def _both_ways(edge: Edge, rank: int, count: int) -> Iterator[Collective]:
    yield from _moves(edge.there, rank, edge.value.type.itemsize, count)
    if edge.value.grad:
        yield from _moves(edge.back, rank, edge.value.type.itemsize, count)


def _moves(route: Route, rank: int, itemsize: int, count: int = 1) -> Iterator[Collective]:
    for phase in route.phases:
        for move in phase:
            if move.source == move.target:
                continue
            if move.source == rank:
                yield from (Collective("send", f"rank {move.target}", itemsize * volume(move.box)),) * count
            elif move.target == rank:
                yield from (Collective("receive", f"rank {move.source}", itemsize * volume(move.box)),) * count


def _tied_replicas(plan: Plan, program: Program, rank: int) -> Iterator[Collective]:
    for transfer in transfers(plan, program):
        yield from _moves(transfer.there, rank, program.parameter(transfer.name).type.itemsize)
        if transfer.back is not None:
            wide = ITEM_BYTES[plan.parameters[transfer.name].dtype]
            yield from _moves(transfer.back, rank, wide)
            if rank in transfer.replica.stage.mesh.ranks:
                yield from transfer.replica.reduction(transfer.shape, wide).backward
