"""Sharding and recomputation under one budget.

A price per byte charges what is held; what backward reads may be made again instead, for no less than the seconds of
what makes it. So `walk` finds shardings that are good where memory is dear, and

    bound(l) = min over chains of (seconds + charges at l) - l * room

is below every chain that recomputes what it likes. `refine` then settles exactly, for a sharding, what each instance
keeps, recomputes and chunks (`memory_plan`), on the traced pairs and their real peaks. Candidates are refined in the
order of their bounds until none can win.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.solve.chain import chain_at, floor_s
from meshwright.solve.frontier import Frontier
from meshwright.solve.memory_chain import Instance, least_peak_bytes, solve_instances
from meshwright.solve.memory_plan import Curves, curves, with_chosen
from meshwright.solve.mix import Chain
from meshwright.solve.reprice import segment_points
from meshwright.solve.search import Candidate, Progress
from meshwright.solve.walk import walk

PRICES = (1e-12, 1e-11, 3e-11, 1e-10, 3e-10, 1e-9)
DEARER = (*PRICES[3:], 1e-8, 1e-6)
MOST_REFINED = 10
"""Shardings whose segments are traced; each takes seconds."""

Assemble = Callable[[Chain, Frontier], Plan]


@dataclass(frozen=True, slots=True)
class _Entry:
    bound_s: float
    candidate: Candidate
    microbatches: int
    price: float


def joint_search(
    candidates: list[Candidate],
    program: Program,
    budget_bytes: int,
    assemble: Assemble,
    best: Plan | None,
    progress: Progress | None = None,
) -> tuple[Plan | None, float]:
    """(the fastest plan, `best` where recomputation does not help; a bound on all of them)."""
    known_s = best.predicted.step_s if best else float("inf")
    entries = sorted(_entries(candidates, budget_bytes, known_s), key=lambda entry: entry.bound_s)
    bounds = []
    for number, entry in enumerate(entries):
        known_s = best.predicted.step_s if best else float("inf")
        bounds.append(entry.bound_s)
        if entry.bound_s >= known_s or (best is not None and number >= MOST_REFINED):
            break
        plan = _fastest(entry, program, budget_bytes, assemble)
        if plan is not None and plan.predicted.step_s < known_s:
            best = plan
            if progress:
                progress(f"{entry.candidate.name} x {entry.microbatches}, recomputing: {plan.predicted.step_s:.4g} s")
    return best, min(bounds, default=known_s)


def _fastest(entry: _Entry, program: Program, budget_bytes: int, assemble: Assemble) -> Plan | None:
    """Of the sharding that is fastest with all the memory it wants, that of the best bound, and, as long as none
    fits, those of dearer bytes."""
    frontier = entry.candidate.frontier(entry.microbatches)
    found: list[Plan] = []
    for price in (0.0, entry.price, *(price for price in DEARER if price > entry.price)):
        if found and price > entry.price:
            break
        plan = refine(assemble(chain_at(frontier, price), frontier), program, budget_bytes)
        found += [plan] if plan else []
    return min(found, key=lambda one: one.predicted.step_s, default=None)


def least_bytes(candidate: Candidate, program: Program, assemble: Assemble) -> int:
    """The least peak of the sharding that holds least, everything made again that can be."""
    frontier = candidate.frontier(candidate.microbatches[-1])
    instances, static, _ = _instances(assemble(chain_at(frontier, DEARER[-1]), frontier), program)
    return least_peak_bytes(instances, static)


def _entries(candidates: list[Candidate], budget_bytes: int, known_s: float) -> list[_Entry]:
    """Every mesh and number of micro-batches that could be faster than what is known, at its best bound."""
    found = []
    for candidate in candidates:
        for number in candidate.microbatches:
            try:
                frontier = candidate.frontier(number)
                best = _best_bound(frontier, budget_bytes, known_s)
            except PlanError:
                continue
            if best is not None:
                found.append(_Entry(best[0], candidate, number, best[1]))
    return found


def _best_bound(frontier: Frontier, budget_bytes: int, known_s: float) -> tuple[float, float] | None:
    """(bound, the price that gives it); None where it is no better than what is known."""
    best = (floor_s(frontier), 0.0)
    for price in PRICES:
        if best[0] >= known_s:
            return None
        bound_s = walk(frontier, price)[0] - price * budget_bytes
        if bound_s < best[0] and best[1]:
            break  # bounds are concave in the price
        best = max(best, (bound_s, price))
    return best if best[0] < known_s else None


def refine(plan: Plan, program: Program, budget_bytes: int) -> Plan | None:
    """The plan with its sharding as it is, recomputing what it must to fit; None where even that does not fit."""
    instances, static, found = _instances(plan, program)
    chosen = solve_instances(instances, budget_bytes, static)
    if chosen is None:
        return None
    held = replace(found, static_bytes=static, gradients=(0,) * len(instances))
    made = with_chosen(held, chosen, plan.memory_bytes)
    # What recomputing adds is counted on the traced pairs; all else is priced as every plan is.
    picked = [options[number] for options, number in zip(found.options, chosen.options, strict=True)]
    more_s = max(
        0.0, sum(kept.seconds - options[0].seconds for kept, options in zip(picked, found.options, strict=True))
    )
    more_s *= plan.microbatches
    before = plan.predicted
    return made.with_prediction(
        step_s=before.step_s + more_s,
        forward_s=before.forward_s,
        backward_s=before.backward_s + more_s,
        optimizer_s=before.optimizer_s,
    )


def _instances(plan: Plan, program: Program) -> tuple[list[Instance], int, Curves]:
    """What each segment may keep, with the weights it gathers beside; what is there all the time."""
    found = curves(program, plan, plan.mesh.device)
    points = segment_points(plan, program)
    instances = []
    for options, point in zip(found.options, points, strict=True):
        gathered = 2 * point.forward_transient_bytes - point.backward_transient_bytes
        more = tuple(
            replace(
                kept,
                forward_transient_bytes=kept.forward_transient_bytes + gathered,
                backward_transient_bytes=kept.backward_transient_bytes + gathered,
            )
            for kept in options
        )
        instances.append(Instance(more, 0))
    return instances, sum(point.static_bytes for point in points), found
