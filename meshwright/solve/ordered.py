"""Nested orders of plans on several devices: segments that run forward more than once, their gathers and collectives
paid for each time.

A segment's figures are its point's: what it communicates is in its forward and backward. What is gathered at each use
is waited for at each run, since a nested list gathers right before it; gradients are reduced beside compute as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.plan import FrontierPoint, Plan, Prediction
from meshwright.plan.order import gathers_of, parse_order, passes_of
from meshwright.price.overlap import host_seconds, late_bytes
from meshwright.price.parameter import chain_uses
from meshwright.remat.curve import Kept
from meshwright.remat.traced import traced_for
from meshwright.schedule.one_stage import plan_instructions
from meshwright.simulate import Costs, SegmentCost, simulate
from meshwright.solve.account import accounted
from meshwright.solve.memory.methods import order_by
from meshwright.solve.memory.nested import Chained, played
from meshwright.solve.memory.plan import with_kept
from meshwright.solve.points import Ways, prediction


def refine_nested(plan: Plan, program: Program, ways: Ways, budget_bytes: int, method: str = "nested") -> Plan | None:
    """The plan with its sharding as it is, in the order of one of `methods.ORDERED`; None where that does not fit."""
    chained = _chained(plan, program, ways)
    room = budget_bytes - ways.static_bytes - late_bytes(ways.points, plan.microbatches)
    found = order_by(chained, method, room) if room > 0 else None
    if found is None or found.peak_bytes > room:
        return None
    plain = {
        id(one): kept
        for mine, own in zip(chained.ways, _whole(ways), strict=True)
        for one, kept in zip(mine, own, strict=True)
    }
    picked = [plain[id(one)] for one in found.picked]
    order = tuple(f"{kind} {index}" for kind, index in found.steps)
    made = replace(with_kept(plan, picked), order=order)
    predicted = ordered_prediction(made, program, ways, picked)
    if predicted.peak_bytes > budget_bytes:
        return None
    return accounted(replace(made, predicted=predicted), program)


def ordered_points(plan: Plan, ways: Ways, picked: Sequence[Kept]) -> list[FrontierPoint]:
    """Every segment's figures, as a simulator wants them: a pass takes a forward, gathers are as many as there are."""
    found = []
    for index, kept in enumerate(picked):
        point = ways.point(index, kept)
        more_s = _gathers_s(plan, index, point) - point.again_s
        found.append(
            replace(
                point,
                first_s=point.first_s + more_s,
                again_s=point.again_s + more_s,
                overlappable_s=point.overlappable_s + more_s if point.overlappable_s else 0.0,
                carried_s=point.carried_s + (more_s if point.carried_s and not point.hideable_s else 0.0),
            )
        )
    return found


def ordered_prediction(plan: Plan, program: Program, ways: Ways, picked: Sequence[Kept]) -> Prediction:
    """Of a plan that has an order: its list is played, what it holds is counted step by step."""
    micro, points = plan.microbatches, ordered_points(plan, ways, picked)
    found = prediction(points, micro, exact_peak=True)
    again = [passes_of(plan.order, index) for index in range(len(points))]
    passes_s = micro * sum(count * point.forward_s for count, point in zip(again, points, strict=True))
    host_s = micro * sum(count * point.forward_host_s for count, point in zip(again, points, strict=True))
    host_s += host_seconds(points, micro)
    costs = Costs([SegmentCost.of(point) for point in points], overlap=True, ranks=[plan.world_size])
    step_s = max(simulate([plan_instructions(plan, program)], costs).step_s, host_s)
    alone_s = sum(point.seconds(micro) for point in points) + passes_s
    steps = parse_order(plan.order, len(points))
    held = played(_chained(plan, program, ways), steps, [ways.beside_weights(i, kept) for i, kept in enumerate(picked)])
    peak = found.static_bytes + held.peak_bytes + late_bytes(ways.points, micro)
    return replace(
        found,
        step_s=step_s,
        backward_s=found.backward_s + passes_s,
        resident_bytes=held.held_bytes,
        transient_bytes=max(0, peak - found.static_bytes - held.held_bytes),
        peak_bytes=peak,
        hidden_s=max(0.0, alone_s - step_s),
        host_s=max(0.0, step_s - alone_s),
    )


def _gathers_s(plan: Plan, index: int, point: FrontierPoint) -> float:
    """Of a step, what the segment gathers at each of its runs."""
    return _gather_s(plan, index, point) * gathers_of(plan.order, index, plan.microbatches)


def _gather_s(plan: Plan, index: int, point: FrontierPoint) -> float:
    """Of one run; a point counts those of a step that runs every segment once."""
    uses = chain_uses((index,), len(plan.segments), plan.microbatches, (index,) if point.spared else ())
    return point.again_s / round(2 * plan.microbatches * uses)


def _whole(ways: Ways) -> list[list[Kept]]:
    last = len(ways.curves.options) - 1
    return [[kept for kept in found if kept.chunks == 1 or i == last] for i, found in enumerate(ways.curves.options)]


def _chained(plan: Plan, program: Program, ways: Ways) -> Chained:
    """What an order is made of; every run of a segment with the gather before it."""
    options = []
    for index, kept in enumerate(_whole(ways)):
        point = ways.points[index]
        gather_s = _gather_s(plan, index, point)
        first_s = ways.curves.options[index][0].seconds
        options.append(
            [
                replace(
                    ways.beside_weights(index, one),
                    forward_s=point.forward_s + gather_s,
                    backward_s=point.backward_s + gather_s + max(0.0, one.seconds - first_s),
                )
                for one in kept
            ]
        )
    return Chained.of(program, plan, options, [0] * len(options), traced_for(plan.mesh.device))
