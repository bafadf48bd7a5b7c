"""One after the other: shardings that are fastest under several budgets with all kept, each then recomputing what it
must under the true one. That is Colossal-Auto's sweep; what is solved together begins with it, so as to be no slower.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.solve.effort import ANY_BYTES
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.mix import Chain
from meshwright.solve.search import Candidate, search

PARTS = (inf, 8.0, 4.0, 2.0, 1.5, 1.25)
"""Budgets, in parts of the true one; the first is all the memory that a sharding wants."""

Refined = Callable[[Chain, Frontier], Plan | None]


def sweep_budgets(
    candidates: list[Candidate],
    budget_bytes: int,
    refined: Refined,
    best: Plan | None,
    parts: tuple[float, ...] = PARTS,
    exactly: bool = True,
) -> Plan | None:
    """The fastest of them, `best` where none is faster. refined: the plan of a sharding under the true budget. exactly:
    as for `solve_chain`; what takes long to make fit with all kept is asked for only while nothing fits otherwise."""
    peak: int | None = None
    for part in parts:
        if peak is not None and peak <= part * budget_bytes:
            continue  # the same again
        known_s = best.predicted.step_s if best else float("inf")
        room = int(part * budget_bytes) if part < inf else ANY_BYTES
        try:
            found = search(candidates, room, limit_s=known_s, exactly=exactly, hard=best is None).best
        except PlanError:
            return best
        if found is None:
            return best  # with all kept it is no faster already, nor is it in less
        peak = found[0].peak_bytes
        plan = refined(*found)
        if plan is not None and plan.predicted.step_s < known_s:
            best = plan
    return best
