"""Nested orders of plans on several devices: segments run forward more than once, gathers and collectives each time.

A segment's forward and backward include its communication. Weights gathered at each use are waited for at each run,
since a nested order gathers right before it; gradient reductions overlap compute.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.plan import FrontierPoint, Plan
from meshwright.planner.effort import RETRIES
from meshwright.planner.memory.methods import order_by
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.plans import with_kept
from meshwright.predict import predicted
from meshwright.price.parameter import chain_uses
from meshwright.remat.chained import Chained, Nested
from meshwright.remat.curve import RematPoint
from meshwright.remat.traced import traced_for


def refine_nested(
    plan: Plan, program: Program, ways: RematOptions, budget_bytes: int, method: str = "nested"
) -> Plan | None:
    """The plan with the same sharding in the order of one of `methods.ORDERED`; None where it does not fit."""
    chained = _chained(plan, program, ways)
    room = budget_bytes - ways.static_bytes
    for _ in range(RETRIES):  # within less where the clock counts more, as with gradients that wait
        found = order_by(chained, method, room) if room > 0 else None
        if found is None or found.peak_bytes > room:
            return None
        made = _ordered(plan, program, ways, chained, found)
        if made.predicted.peak_bytes <= budget_bytes:
            return made
        room = found.peak_bytes - (made.predicted.peak_bytes - budget_bytes)
    return None


def _ordered(plan: Plan, program: Program, ways: RematOptions, chained: Chained, found: Nested) -> Plan:
    """The plan in a nested order."""
    plain = {
        id(one): kept
        for mine, own in zip(chained.ways, _whole(ways), strict=True)
        for one, kept in zip(mine, own, strict=True)
    }
    picked = [plain[id(one)] for one in found.picked]
    order = tuple(f"{kind} {index}" for kind, index in found.steps)
    return predicted(replace(with_kept(plan, picked), order=order), program)


def _gather_s(plan: Plan, index: int, point: FrontierPoint) -> float:
    """Seconds of the gather before one run; a point counts all of a step that runs every segment once."""
    uses = chain_uses((index,), len(plan.segments), plan.microbatches, (index,) if point.lookup else ())
    return point.gather_per_use_s / round(2 * plan.microbatches * uses)


def _whole(ways: RematOptions) -> list[list[RematPoint]]:
    last = len(ways.curves.options) - 1
    return [[kept for kept in found if kept.chunks == 1 or i == last] for i, found in enumerate(ways.curves.options)]


def _chained(plan: Plan, program: Program, ways: RematOptions) -> Chained:
    """The chain for a search of orders; every run of a segment includes the gather before it."""
    options = []
    for index, kept in enumerate(_whole(ways)):
        point = ways.points[index]
        gather_s = _gather_s(plan, index, point)
        gather_params_s = ways.curves.options[index][0].seconds
        options.append(
            [
                replace(
                    one.with_transient(ways.gathered[index]),
                    forward_s=point.forward_s + gather_s,
                    backward_s=point.backward_s + gather_s + max(0.0, one.seconds - gather_params_s),
                )
                for one in kept
            ]
        )
    return Chained.of(program, plan, options, ways.gradients, traced_for(plan.mesh.device))
