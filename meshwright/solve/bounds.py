"""What no plan on a mesh, in a number of micro-batches, is faster than, however it shards and whatever it makes again.

A price per byte charges what is held; what backward reads may be made again instead, for no less than the seconds of
what makes it. So

    bound(l, r) = min over chains of (seconds at the weight r of what runs beside compute + charges at l) - l * room

is below every chain that recomputes what it likes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import sqrt

from meshwright.errors import PlanError
from meshwright.solve.intra.chain import floor_s, least_s
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.walk import least_cost
from meshwright.solve.search import Candidate, any_evener
from meshwright.solve.together import weighed

PRICES = (1e-12, 1e-11, 3e-11, 1e-10, 3e-10, 1e-9, 1e-8)
CLOSER = 3
"""How often the price of the best bound is looked for between its neighbours."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What nothing is faster than. price: per byte, of PRICES the one that says most."""

    seconds: float
    price: float


@dataclass(frozen=True, slots=True)
class Entry:
    """weighed: what runs beside compute is in the bound."""

    bound: Bound
    candidate: Candidate
    microbatches: int
    weighed: bool = False

    def frontier(self) -> Frontier:
        return self.candidate.frontier(self.microbatches).recomputing()

    def __lt__(self, other: Entry) -> bool:
        return self.bound.seconds < other.bound.seconds


def entries(candidates: list[Candidate], budget_bytes: int, known_s: float) -> Iterable[Entry]:
    """Every mesh and number of micro-batches that could be faster than what is known, at its best bound by compute."""
    for candidate in candidates:
        for number in candidate.microbatches:
            try:
                frontier = candidate.frontier(number).recomputing()
                if frontier.least_static() > budget_bytes:
                    break  # nor is there less of it in more of them
                if frontier.bounds and least_s(frontier) >= known_s:
                    if any_evener(candidate, frontier):
                        continue
                    break  # more micro-batches are no faster
                least = Bound(least_s(frontier) if frontier.bounds else floor_s(frontier), 0.0)
                bound = best_bound([frontier], budget_bytes, known_s, least)
            except PlanError:
                continue
            if bound.seconds < known_s:
                yield Entry(bound, candidate, number)


def raised(entry: Entry, budget_bytes: int, known_s: float) -> Entry:
    """With what runs beside compute in its bound."""
    bound = best_bound(weighed(entry.frontier())[1:], budget_bytes, known_s, entry.bound)
    return Entry(bound, entry.candidate, entry.microbatches, True)


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
