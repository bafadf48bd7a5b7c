"""Shard first, then rematerialise: Colossal-Auto's sweep of budgets.

Each sharding is the fastest under a larger budget with everything kept. It then recomputes what it must under the true
budget. The joint search begins with these plans as incumbents; with a pinned method, such as `recompute=rotor`, they
are the whole search.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.exact import Charge, uncharged
from meshwright.planner.effort import ANY_BYTES, ROUGH
from meshwright.planner.search.keep_all import Candidate, search
from meshwright.planner.sharding.model import ShardingModel

Refined = Callable[[Chain, ShardingModel], Plan | None]


def sweep_budgets(
    candidates: list[Candidate],
    budget_bytes: int,
    refined: Refined,
    best: Plan | None,
    exactly: bool = True,
    first: bool = False,
    charge: Charge = uncharged,
) -> Plan | None:
    """The fastest plan of the sweep, or `best` where none is faster.

    Where nothing is found, it is swept again for somewhat less: other budgets have other shardings.
    refined: the plan of a sharding under the true budget.
    exactly, charge: as for `solve_chain`; and exactly, the last budget is the true one.
    """
    found = _swept(candidates, budget_bytes, refined, best, exactly, first, charge)
    return found or _swept(candidates, int(budget_bytes / ROUGH), refined, None, exactly, first, charge)


def _swept(
    candidates: list[Candidate],
    budget_bytes: int,
    refined: Refined,
    best: Plan | None,
    exactly: bool,
    first: bool,
    charge: Charge,
) -> Plan | None:
    """The first budget has no limit. Each following one is the geometric mean of the last peak and the true budget.
    Where a budget fits nothing, the next lies halfway back to the last peak."""
    room = peak = ANY_BYTES
    skipped = False
    while peak > budget_bytes:
        incumbent_s = best.predicted.step_s if best else float("inf")
        try:
            hard = best is None
            found = search(candidates, room, limit_s=incumbent_s, exactly=exactly, hard=hard, charge=charge).best
        except PlanError:
            return best
        if found is None:
            if peak == ANY_BYTES or peak * peak <= ROUGH * room * room:
                return best  # with all kept it is no faster already, nor is it in less
            room, skipped = isqrt(peak * room), True  # a sharding that holds less may fit between
            continue
        peak = found[0].peak_bytes
        plan = refined(*found)
        if plan is not None and plan.predicted.step_s < incumbent_s:
            best = plan
        near = peak <= ROUGH * budget_bytes
        if (first and best) or skipped or room == budget_bytes or (near and not exactly):
            break
        room = budget_bytes if near else isqrt(peak * budget_bytes)
    return best
