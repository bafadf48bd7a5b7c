"""The fastest chain that fits, over all meshes and all numbers of micro-batches, and a bound over all of them.

More micro-batches never make the work faster: each op and each conversion takes at least as long in pieces. So the
chain of one micro-batch without a memory limit bounds every number of them on a mesh, and once a number fits without
paying for memory, larger ones are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshwright.errors import PlanError
from meshwright.solve.intra.chain import bound_at, floor_s, solve_chain
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.mix import Chain

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mesh: what makes its Frontier for a number of micro-batches, and the numbers to look at, ascending."""

    name: str
    microbatches: tuple[int, ...]
    frontier: Callable[[int], Frontier]


@dataclass(frozen=True, slots=True)
class Found:
    chain: Chain
    frontier: Frontier
    bound_s: float


def search(
    candidates: list[Candidate], budget_bytes: int, progress: Progress | None = None, limit_s: float = float("inf")
) -> Found | None:
    """Meshes in the order of what they could reach; those that cannot beat what was found, or `limit_s`, are not looked
    at further."""
    floors, refused = [], []
    for candidate in candidates:
        try:
            first = candidate.frontier(candidate.microbatches[0])
            floors.append((floor_s(first) if first.bounds else 0.0, candidate))
        except PlanError as error:
            refused.append(error)
    if not floors:
        raise refused[0]
    best: tuple[Chain, Frontier] | None = None
    bounds: list[float] = []
    price = 0.0
    for floor, candidate in sorted(floors, key=lambda item: item[0]):
        known_s = best[0].seconds if best else limit_s
        if floor >= known_s:
            bounds.append(floor)
            break
        for frontier in _frontiers(candidate):
            known_s = best[0].seconds if best else limit_s
            if frontier.least_held() + frontier.least_transient() > budget_bytes:
                continue
            if price and frontier.bounds and (bound_s := bound_at(frontier, price, budget_bytes)) >= known_s:
                bounds.append(bound_s)
                continue
            chain, bound_s = solve_chain(frontier, budget_bytes, known_s)
            bounds += [bound_s] if frontier.bounds else []
            if chain is not None and chain.seconds < known_s:
                best, price = (chain, frontier), chain.price
                if progress:
                    progress(f"{candidate.name} x {frontier.setting.microbatches}: {chain.seconds:.4g} s")
            if chain is not None and not chain.price:
                break
    return Found(*best, min(*bounds, best[0].seconds)) if best else None


def _frontiers(candidate: Candidate) -> Iterator[Frontier]:
    for number in candidate.microbatches:
        try:
            yield candidate.frontier(number)
        except PlanError:
            continue  # this cut of the batch does not go with the pins
