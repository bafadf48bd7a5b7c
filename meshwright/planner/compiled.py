"""Plans that run compiled on several devices.

Shardings and stages are searched for with the share of each op's seconds that is left when it is compiled with its
neighbours (`cost.op.fused`). What the segments of one stage keep is then decided on compiled pairs, and all is
predicted by them. Shares are not bounds: no bound on compiled plans is known.
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
"""A gap of everything."""


def compiled_plan(
    search: Callable[[int | None], Plan], program: Program, memory_bytes: int | None, budget_bytes: int, method: str
) -> Plan:
    """search: the fastest plan in so much memory, by the shares of its ops. method: what saves memory. Raises PlanError
    where none fits."""
    asked, over = memory_bytes, 0
    for _ in range(RETRIES):
        found = replace(_fitted(search(asked), program, budget_bytes, method), memory_bytes=memory_bytes)
        over = found.predicted.peak_bytes - budget_bytes
        if over <= 0:
            return found.with_prediction(gap=NO_BOUND)
        asked = (asked or budget_bytes) - over
    raise PlanError(
        f"no compiled plan was found in {show_bytes(budget_bytes)} of memory per device",
        f"about {show_bytes(budget_bytes + over)}",
        "raise the limit, make the batch smaller, or plan without compile",
    )


def _fitted(plan: Plan, program: Program, budget_bytes: int, method: str) -> Plan:
    """The fastest that fits of what the plan keeps and what compiled pairs would keep; the first if none does."""
    plan = predicted(plan, program)
    if len(plan.stages) > 1 or plan.order or method not in ("auto", "flat"):
        return plan
    fits = plan.predicted.peak_bytes <= budget_bytes
    chunks = () if fits and not plan.recomputes else CHUNKS
    other = refine(plan, program, budget_bytes, chunks, flat=method == "flat")
    if other is None or other.predicted.peak_bytes > budget_bytes:
        return plan
    return other if not fits or other.predicted.step_s < plan.predicted.step_s else plan
