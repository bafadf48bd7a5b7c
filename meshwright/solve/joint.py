"""Sharding and recomputation under one budget.

A price per byte charges what is held; what backward reads may be made again instead, for no less than the seconds of
what makes it. So `walk` finds shardings that are good where memory is dear, and

    bound(l, r) = min over chains of (seconds at the weight r of what runs beside compute + charges at l) - l * room

is below every chain that recomputes what it likes. `refine` settles exactly, for a sharding, what each instance keeps,
recomputes and chunks, on the traced pairs and their real peaks; `together` looks at the shardings of one mesh in one
number of micro-batches, and at their mixtures. What is found one after the other (`sweep`) is what is to be beaten;
candidates are looked at in the order of their bounds until none can win.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import sqrt

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.solve.intra.chain import floor_s
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.mix import Chain
from meshwright.solve.intra.walk import least_cost
from meshwright.solve.refine import refine
from meshwright.solve.search import SAME, Candidate, Progress, any_evener, search
from meshwright.solve.sweep import swept
from meshwright.solve.together import FEWER, Assemble, Together, weighed

PRICES = (1e-12, 1e-11, 3e-11, 1e-10, 3e-10, 1e-9, 1e-8)
CLOSER = 3
"""How often the price of the best bound is looked for between its neighbours."""

MOST_REFINED = 10
"""Meshes and numbers of micro-batches that are looked at once something fits; each takes seconds."""

WORTH = 0.995
"""A bound closer to what is known than this is not looked into: tracing takes longer than that saves."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What nothing is faster than. price: per byte, of PRICES the one that says most."""

    seconds: float
    price: float


@dataclass(frozen=True, slots=True)
class _Entry:
    """weighed: what runs beside compute is in the bound."""

    bound: Bound
    candidate: Candidate
    microbatches: int
    weighed: bool = False

    def frontier(self) -> Frontier:
        return self.candidate.frontier(self.microbatches).recomputing()

    def __lt__(self, other: _Entry) -> bool:
        return self.bound.seconds < other.bound.seconds


def joint_search(
    candidates: list[Candidate],
    program: Program,
    budget_bytes: int,
    assemble: Assemble,
    best: Plan | None,
    progress: Progress | None = None,
    flat: bool = False,
) -> tuple[Plan | None, float]:
    """(the fastest plan, `best` where recomputation does not help; a bound on all of them). flat: every segment runs
    forward once, and nothing waits on the host."""

    def refined(chain: Chain, frontier: Frontier) -> Plan | None:
        return refine(assemble(chain, frontier), program, budget_bytes, FEWER, flat)

    known_s = best.predicted.step_s if best else float("inf")
    hopeful: list[_Entry] | None = None
    if best is not None:
        roomy = search(candidates, 1 << 62, limit_s=(1 - SAME) * known_s)
        if roomy.best is None:  # more memory would not make it faster, nor does making values again
            return best, min(known_s, roomy.bound_s)
        # what cannot be faster need not be swept
        found = (_raised(entry, budget_bytes, known_s) for entry in _entries(candidates, budget_bytes, known_s))
        hopeful = [entry for entry in found if entry.bound.seconds < known_s]
    best = swept(candidates if hopeful is None else _only(candidates, hopeful), budget_bytes, refined, best)
    known_s = best.predicted.step_s if best else float("inf")
    entries = list(_entries(candidates, budget_bytes, known_s)) if hopeful is None else hopeful
    heapify(entries)
    bounds: list[float] = []
    while entries:
        entry = heappop(entries)
        if entry.bound.seconds >= WORTH * known_s or (best is not None and len(bounds) >= MOST_REFINED):
            bounds.append(entry.bound.seconds)
            break
        if not entry.weighed:  # the others stay where they are: a bound is only raised where it stands first
            heappush(entries, _raised(entry, budget_bytes, known_s))
            continue
        bounds.append(entry.bound.seconds)
        offered = (lambda _, ways: ways.curves.options) if flat else None
        together = Together(entry.frontier(), program, budget_bytes, assemble, known_s, offered)
        plan = together.fastest(entry.bound.price) or together.otherwise()
        if plan is not None and plan.predicted.step_s < known_s:
            best, known_s = plan, plan.predicted.step_s
            if progress:
                progress(f"{entry.candidate.name} x {entry.microbatches}, recomputing: {known_s:.4g} s")
    if best is not None and len(best.stages) == 1 and best.recomputes and not best.order:
        last = refine(best, program, budget_bytes, flat=flat)
        best = last if last and last.predicted.step_s < best.predicted.step_s else best
    return best, min(bounds, default=known_s)


def _entries(candidates: list[Candidate], budget_bytes: int, known_s: float) -> Iterable[_Entry]:
    """Every mesh and number of micro-batches that could be faster than what is known, at its best bound by compute."""
    for candidate in candidates:
        for number in candidate.microbatches:
            try:
                frontier = candidate.frontier(number).recomputing()
                if frontier.least_static() > budget_bytes:
                    break  # nor is there less of it in more of them
                if frontier.bounds and floor_s(frontier) >= known_s:
                    if any_evener(candidate, frontier):
                        continue
                    break  # more micro-batches are no faster
                bound = best_bound([frontier], budget_bytes, known_s, Bound(floor_s(frontier), 0.0))
            except PlanError:
                continue
            if bound.seconds < known_s:
                yield _Entry(bound, candidate, number)


def _raised(entry: _Entry, budget_bytes: int, known_s: float) -> _Entry:
    """With what runs beside compute in its bound."""
    bound = best_bound(weighed(entry.frontier())[1:], budget_bytes, known_s, entry.bound)
    return _Entry(bound, entry.candidate, entry.microbatches, True)


def _only(candidates: list[Candidate], entries: list[_Entry]) -> list[Candidate]:
    """The candidates with those numbers of micro-batches alone that have an entry."""
    numbers: dict[int, set[int]] = {}
    for entry in entries:
        numbers.setdefault(id(entry.candidate), set()).add(entry.microbatches)
    return [
        replace(one, microbatches=tuple(number for number in one.microbatches if number in numbers[id(one)]))
        for one in candidates
        if id(one) in numbers
    ]


def best_bound(frontiers: Iterable[Frontier], budget_bytes: int, known_s: float, best: Bound) -> Bound:
    """The highest over these weights and all prices; no more is asked once it is no better than what is known."""
    for frontier in frontiers:
        met: list[tuple[float, float]] = []
        for price in PRICES:
            if best.seconds >= known_s:
                return best
            met.append((_bound_s(frontier, price, budget_bytes), price))
            best = max(best, Bound(*met[-1]), key=lambda one: one.seconds)
            if met[-1] < max(met):
                break  # bounds are concave in the price
        best = _closer(frontier, budget_bytes, known_s, best, met)
    return best


def _closer(
    frontier: Frontier, budget_bytes: int, known_s: float, best: Bound, met: list[tuple[float, float]]
) -> Bound:
    """The highest bound at prices between those that were met, which are apart."""
    for _ in range(CLOSER):
        prices, top = sorted(price for _, price in met), max(met)[1]
        place = prices.index(top)
        neighbours = (prices[max(0, place - 1)], prices[place + 1] if place + 1 < len(prices) else 10 * top)
        for price in (sqrt(other * top) for other in neighbours if other != top):
            if best.seconds >= known_s:
                return best
            met.append((_bound_s(frontier, price, budget_bytes), price))
            best = replace(best, seconds=max(best.seconds, met[-1][0]))
    return best


def _bound_s(frontier: Frontier, price: float, budget_bytes: int) -> float:
    asked = price * frontier.scale
    return (least_cost(frontier, asked) - asked * budget_bytes) / frontier.scale
