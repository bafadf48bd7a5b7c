"""Compiled plans for several devices.

The search prices an op by the share of its seconds that fusion leaves (`cost.op.fused`). Rematerialisation of a plan
of one stage is then chosen again on compiled segment pairs, and the plan is predicted by these. Shares of seconds are
no lower bounds, so no gap of a compiled plan is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes
from meshwright.planner.effort import RETRIES
from meshwright.planner.memory.refine import refine
from meshwright.predict import predicted
from meshwright.remat.inner import CHUNKS

NO_BOUND = 1.0
"""The gap where no lower bound is known."""


def compiled_plan(
    search: Callable[[int | None], Plan], program: Program, memory_bytes: int | None, budget_bytes: int, method: str
) -> Plan:
    """The fastest plan that fits when compiled. Raises PlanError where none does.

    search: the fastest plan within so many bytes per device, as fused shares price it.
    budget_bytes: bytes per device that the plan may fill.
    """
    limit, over = memory_bytes, 0
    for _ in range(RETRIES):
        found = replace(_fitted(search(limit), program, budget_bytes, method), memory_bytes=memory_bytes)
        over = found.predicted.peak_bytes - budget_bytes
        if over <= 0:
            return found.with_prediction(gap=NO_BOUND)
        limit = (limit or budget_bytes) - over
    raise PlanError(
        f"no compiled plan was found in {show_bytes(budget_bytes)} of memory per device",
        f"about {show_bytes(budget_bytes + over)}",
        "raise the limit, make the batch smaller, or plan without compile",
    )


def _fitted(plan: Plan, program: Program, budget_bytes: int, method: str) -> Plan:
    """The plan, or the plan refined on compiled pairs, whichever is faster and fits; the plan if neither fits."""
    plan = predicted(plan, program)
    if len(plan.stages) > 1 or plan.order or method not in ("auto", "flat"):
        return plan
    fits = plan.predicted.peak_bytes <= budget_bytes
    chunks = () if fits and not plan.recomputes else CHUNKS
    other = refine(plan, program, budget_bytes, chunks, method)
    if other is None or other.predicted.peak_bytes > budget_bytes:
        return plan
    return other if not fits or other.predicted.step_s < plan.predicted.step_s else plan
