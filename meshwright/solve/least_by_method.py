"""When no plan fits that saves memory in the way a pin names: the fewest bytes in which one does."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes
from meshwright.solve.intra.chain import DEAREST, chain_at
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.mix import Chain
from meshwright.solve.memory.methods import ORDERED, fixed_ways
from meshwright.solve.ordered import refine_nested
from meshwright.solve.points import Ways
from meshwright.solve.search import Candidate

NEAR = 1.002
"""Budgets between which no other is tried."""


def least_by_method(
    candidate: Candidate, program: Program, assemble: Callable[[Chain, Frontier], Plan], method: str
) -> int:
    """Of the sharding that holds least, in the most micro-batches: a budget in which it fits."""
    frontier = candidate.frontier(candidate.microbatches[-1])
    plan = assemble(chain_at(frontier, DEAREST), frontier)
    ways = Ways.of(plan, program, ())
    if method in ORDERED:
        return _least_ordered(plan, program, ways, method)
    picked = fixed_ways(program, ways.curves.plan, ways.curves.options, method)
    return ways.predicted(picked, plan.microbatches).peak_bytes


def _least_ordered(plan: Plan, program: Program, ways: Ways, method: str) -> int:
    """Doubled until an order fits, then halved between what does and what does not: an order is looked for in parts of
    the budget, so that it may not be found again in no more than it takes."""
    low, high = ways.static_bytes, 2 * ways.static_bytes
    while refine_nested(plan, program, ways, high, method) is None:
        low, high = high, 2 * high
    while high > NEAR * low:
        middle = (low + high) // 2
        fits = refine_nested(plan, program, ways, middle, method) is not None
        low, high = (low, middle) if fits else (middle, high)
    return high


def no_room(method: str, budget_bytes: int, least_bytes: int) -> PlanError:
    pin = f"recompute={method}"
    return PlanError(
        f"no plan with {pin} fits in {budget_bytes:,} bytes ({show_bytes(budget_bytes)})",
        f"at least {least_bytes:,} bytes ({show_bytes(least_bytes)}), {least_bytes - budget_bytes:,} more: weights and "
        "values cut as far as they go, in the most micro-batches",
        f"raise the limit, drop the pin {pin}, use more devices or make the batch smaller",
    )
