"""The fastest chain within a memory budget, by Lagrangian relaxation of the budget.

With a price l per byte held,

    bound(l) = min over chains of (seconds + l * held) - l * budget                                       `bound_at`

is a lower bound by weak duality, and `walk` finds the minimum. Two chains, one over the budget and one within it, cost
the same at one price; asking there raises the bound until neither is met again (`_bracket`). The points of all chains
met are then recombined (`combine_chains`). Small programs are solved exactly (`exact_chain`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwright.errors import PlanError
from meshwright.planner.chain.chains import Chain, combine_chains
from meshwright.planner.chain.exact import Charge, exact_chain, is_small, uncharged
from meshwright.planner.chain.exact_memory import MinMemoryChoice
from meshwright.planner.chain.shortest_path import least_cost, walk
from meshwright.planner.effort import PRICES, RETRIES
from meshwright.planner.sharding.model import ShardingModel

ANY_PRICE = 1.0
"""Seconds per byte: more than any is worth."""

CLOSED = 1e-9
"""The gap that is none: seconds added up in another order."""


@dataclass(slots=True)
class _Search:
    """Chains met so far and the best dual bound.

    room_bytes: the budget less the smallest transient.
    highest: the highest price asked for, in seconds per byte.
    charge: for each Problem that is solved exactly.
    """

    shardings: ShardingModel
    budget_bytes: int
    room_bytes: int
    bound_s: float = 0.0
    highest: float = ANY_PRICE
    charge: Charge = uncharged
    chains: list[Chain] = field(default_factory=list)

    def ask(self, price: float) -> Chain:
        cost, chain = _cheapest(self.shardings, price)
        if self.shardings.cap_bytes is None and self.shardings.bounds:
            self.bound_s = max(self.bound_s, (cost - price * self.room_bytes) / self.shardings.scale)
        self.chains.append(chain)
        return chain

    def fits(self, chain: Chain) -> bool:
        return chain.fits(self.budget_bytes)


def _cheapest(shardings: ShardingModel, price: float) -> tuple[float, Chain]:
    """(cost, chain) of the cheapest chain at a price; remembered for searches under other budgets."""
    key = shardings.key(price)
    found: tuple[float, Chain] | None = shardings.chains.get(key)
    if found is None:
        cost, path = walk(shardings, price)
        points = tuple(shardings.point(index, options, price) for index, options in enumerate(path))
        found = cost, Chain(points, tuple(path), shardings.setting.microbatches, price)
        shardings.chains[key] = found
    return found


def chain_at(shardings: ShardingModel, price: float) -> Chain:
    """The cheapest chain at a price per byte."""
    return _cheapest(shardings, price)[1]


def chain_under_cap(shardings: ShardingModel, price: float) -> Chain | None:
    """`chain_at`; None where a segment has no strategy under the cap on transients."""
    try:
        return chain_at(shardings, price)
    except PlanError:  # pins leave ways: chains without the cap were found
        return None


def memory_free_bound_s(shardings: ShardingModel) -> float:
    """Lower bound on the step of any chain: the fastest with unlimited memory."""
    return least_cost(shardings, 0.0) / shardings.scale


def step_bound_s(shardings: ShardingModel) -> float:
    """`memory_free_bound_s`, or the host's kernel launches where these take longer."""
    return max(memory_free_bound_s(shardings), shardings.least_host_s())


def bound_at(shardings: ShardingModel, price: float, budget_bytes: int) -> float:
    """The dual bound at one price, in seconds, on every chain that fits."""
    return (least_cost(shardings, price) - price * (budget_bytes - shardings.least_transient())) / shardings.scale


def solve_chain(
    shardings: ShardingModel,
    budget_bytes: int,
    incumbent_s: float = float("inf"),
    exactly: bool = True,
    hard: bool = True,
    first: bool = False,
    charge: Charge = uncharged,
) -> tuple[Chain | None, float]:
    """(the fastest chain that fits; a lower bound in seconds on all that fit). No chain where none is found that is
    faster than the incumbent.

    exactly: solve a small program exactly, which takes longer.
    hard: go on where nothing fits at the highest price.
    first: stop at the first chain that fits.
    charge: for each Problem that is solved exactly.
    """
    search = _Search(shardings, budget_bytes, budget_bytes - shardings.least_transient(), charge=charge)
    free = search.ask(0.0)
    if search.fits(free) or search.bound_s >= incumbent_s:
        return (free if search.fits(free) else None), search.bound_s
    least = free
    for highest in (PRICES[-1] * free.seconds / max(1, budget_bytes), ANY_PRICE):
        if search.fits(least) or highest <= least.price:
            continue
        search.highest, search.shardings = highest, shardings
        least = search.ask(highest)
        if not search.fits(least):
            if not hard and not is_small(shardings):
                return None, search.bound_s
            least = _fit_under_cap(search, least)
    if search.fits(least):
        if first:
            return least, search.bound_s
        _bracket(search, free, least, incumbent_s)
        if search.bound_s >= incumbent_s:
            return None, search.bound_s
    small = exactly and is_small(shardings)
    min_memory = _min_memory_chain(search, least.price) if small and first else None
    if min_memory is not None:
        return min_memory, search.bound_s
    combined = combine_chains(search.shardings, search.chains, budget_bytes)
    fitting = [chain for chain in (*search.chains, combined) if chain is not None and search.fits(chain)]
    best = min(fitting, key=lambda chain: chain.seconds, default=None)
    if first or not small:
        return best, search.bound_s
    best = best or _min_memory_chain(search, least.price)
    if best is not None and best.seconds > search.bound_s * (1 + CLOSED):
        exact, bound_s = exact_chain(shardings, budget_bytes, least.price, charge)
        if exact is not None and exact.seconds < best.seconds:
            best = exact
        if shardings.bounds:
            search.bound_s = max(search.bound_s, min(bound_s, best.seconds))
    return best, search.bound_s


def _min_memory_chain(search: _Search, price: float) -> Chain | None:
    """Of a small program, a chain that fits; the bound becomes infinite where it is proven that there is none."""
    chain, none = MinMemoryChoice.of(search.shardings).chain(search.budget_bytes, price, search.charge)
    if none:
        search.bound_s = float("inf")
    return chain


def least_bytes(shardings: ShardingModel) -> int:
    """The peak of the chain that holds the fewest bytes."""
    return chain_at(shardings, ANY_PRICE).peak_bytes


def _fit_under_cap(search: _Search, over: Chain) -> Chain:
    """The chain with the fewest held bytes, with transients capped until it fits; the search keeps that cap."""
    for _ in range(RETRIES):
        cap = search.budget_bytes - over.held_bytes
        if (
            search.shardings.cap_bytes is not None and cap >= search.shardings.cap_bytes
        ):  # what waits besides is too much
            cap = over.transient_bytes - (over.peak_bytes - search.budget_bytes)
        if cap <= 0:
            return over
        capped = search.shardings.capped(cap)
        capped_chain = chain_under_cap(capped, over.price)
        if capped_chain is None:
            return over
        search.shardings, over = capped, capped_chain
        search.chains.append(over)
        if search.fits(over):
            return over
    return over


def _bracket(search: _Search, over: Chain, within: Chain, incumbent_s: float) -> None:
    """Exact bracketing of the price, between a chain that is over the budget and one that fits."""
    for _ in range(RETRIES):
        if search.bound_s >= incumbent_s or within.held_bytes >= over.held_bytes:
            return
        overlap_weight = search.shardings.overlap_weight
        more_s = within.weighed_s(overlap_weight) - over.weighed_s(overlap_weight)
        price = more_s / (over.held_bytes - within.held_bytes)
        if not 0 < price <= search.highest:
            return
        chain = search.ask(price)
        if chain.held_bytes in (over.held_bytes, within.held_bytes):
            return
        if search.fits(chain):
            within = chain
        else:
            over = chain
