"""Bound and search for large cores.

1. `Ascent` raises the lower bound for a share of the time, longer while the gap closes. Every choice it decodes is a
   candidate. Its prices say what memory is worth.
2. If no candidate was feasible, `_make_feasible` re-optimises forests and raises the prices of overfull rows.
3. One searcher per thread goes through cycles of growing length. `perturb` finds a good region, `local_search`
   improves the best choice of the cycle (`kernels.search`). Cycles start from the best choice of all.
4. Elimination mixes the searchers' choices with the best one (`fusion`).

Slices of equal work end before anything is compared, so two threads give the same result as one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from meshwright.select.budget import Best
from meshwright.select.dual import Ascent
from meshwright.select.fusion import Fusion
from meshwright.select.kernels import rows, search
from meshwright.select.kernels.arrays import Arrays, lay_out
from meshwright.select.kernels.forest import Forest, new_forest
from meshwright.select.priced import row_units
from meshwright.select.problem import Floats, Ints

ASCENT_SHARE = 0.12  # of the budget
LONGEST_ASCENT = 0.5  # of the budget, where the bound keeps rising
ASCENT_SLICE = 0.04  # of the budget; the bound keeps rising where this closes a part of the gap:
RISING = 0.02
CYCLES = (0.15, 0.25, 0.6)  # shares of what is left
PERTURB_SHARE = 0.7  # of a cycle; the rest is local search
PERTURB_HEAT = 0.3  # noise per option at the start, in units of cost per node
PRICE_UP, PRICE_DOWN = 1.1, 0.98  # factors of prices after a sweep
LOCAL_HEAT = 0.03
LOCAL_SLACK = 3e-5  # of the cost: what a move may lose at the start
LARGEST_FOREST = 400
FIRST_PRICE = 0.003  # of the cost per limit
QUOTA = 20  # steps of a slice per option: more than its random numbers take
DECAY = 0.999  # of prices per feasible move of the local search


@dataclass(slots=True)
class Searcher:
    """One thread's search."""

    arrays: Arrays
    forest: Forest
    state: search.State
    rng: np.random.Generator
    quota: float

    def restart(self, choice: Ints, price: np.ndarray | None, cost: float) -> None:
        """Goes on from `choice`; prices stay as they are if none are given."""
        s = self.state
        for x in (s.x, s.best, s.trial):
            x[:] = choice
        if price is not None:
            s.price[:] = price
        rows.fill_usage(self.arrays, s.x, s.usage)
        s.scalars[:] = rows.total_cost(self.arrays, s.x)
        s.unit[:] = FIRST_PRICE * abs(cost) / row_units(self.arrays.limits, self.arrays.bytes)

    def perturb(self, cost: float, cool: float) -> float:
        """About `quota` steps of `search.perturb`; returns steps done."""
        heat = PERTURB_HEAT * cool * abs(cost) / len(self.state.x)
        return search.perturb(
            self.arrays, self.forest, self.state, *self._random_numbers(), self.quota, heat, PRICE_UP, PRICE_DOWN
        )

    def local_search(self, cost: float, cool: float) -> float:
        """About `quota` steps of `search.local_search`; returns steps done."""
        s, a = self.state, self.arrays
        heat, slack = LOCAL_HEAT * cool**2 * abs(cost) / len(s.x), LOCAL_SLACK * cool**2 * abs(cost)
        steps = search.local_search(
            a, self.forest, s, *self._random_numbers(), self.quota, LARGEST_FOREST, heat, slack, DECAY
        )
        s.scalars[0] = rows.total_cost(a, s.x)  # forget rounding
        rows.fill_usage(a, s.x, s.usage)
        return steps

    def _random_numbers(self) -> tuple[Floats, Floats]:
        """Random numbers for one slice: uniform ones, and exponential ones for noise."""
        options = len(self.arrays.costs)
        return self.rng.random(max(100_000, 20 * len(self.state.x))), self.rng.standard_exponential(2 * options + 2000)


def solve(best: Best, seed: int, done: list[str], listen: Callable[[], bool] | None = None) -> None:
    """Improves `best`. `listen`, called between slices, may bring in what another solver found and says whether to go
    on; with it only one thread is used here, the other core being taken.
    """
    a = lay_out(best.problem)

    def going() -> bool:
        return (listen is None or listen()) and not best.budget.over()

    ascent = Ascent(a)
    _climb(ascent, best, going, best.budget.fraction() + ASCENT_SHARE * (1 - best.budget.fraction()))
    rising = True
    while rising and going() and best.budget.fraction() < LONGEST_ASCENT:
        bound = best.bound
        _climb(ascent, best, going, best.budget.fraction() + ASCENT_SLICE)
        rising = best.bound - bound > RISING * (best.cost - bound)
    done.append(f"{ascent.passes} passes of message passing, bound {ascent.bound + best.constant:.9g}")
    threads = 1 if listen is not None else 2
    searchers = [_searcher(a, ascent.x, seed, i) for i in range(threads)]
    price = ascent.best_price
    if not np.isfinite(best.cost):
        price = _make_feasible(searchers[0], price, best, going)
    if np.isfinite(best.cost):
        steps = _search(searchers, price, best, ascent, going)
        done.append(f"large-neighbourhood search on {threads} threads, {steps:.3g} steps")
    else:
        best.choice = searchers[0].state.x


def _searcher(a: Arrays, x: Ints, seed: int, number: int) -> Searcher:
    quota = QUOTA * len(a.costs)
    return Searcher(a, new_forest(a), search.new_state(a, x), np.random.default_rng((seed, number)), quota)


def _climb(ascent: Ascent, best: Best, going: Callable[[], bool], until: float) -> None:
    """Ascends until this part of the budget is used up."""
    while going() and best.budget.fraction() < until:
        best.budget.charge(ascent.step())
        best.offer(ascent.x, "bound")
        best.raise_bound(ascent.bound, "bound")


def _make_feasible(searcher: Searcher, price: np.ndarray, best: Best, going: Callable[[], bool]) -> np.ndarray:
    """Sweeps and raises prices until a choice is feasible; returns the prices that did it."""
    s, a = searcher.state, searcher.arrays
    noise = np.zeros(len(a.costs) + 1)
    s.price[:] = price
    while going():
        s.unit[:] = FIRST_PRICE * abs(rows.total_cost(a, s.x)) / row_units(a.limits, a.bytes)
        for _ in range(3):
            steps, _ = search.sweep(a, searcher.forest, s, searcher.rng.random(4 * len(s.x) + 1000), noise, 0, 0.0)
            best.budget.charge(steps)
        if search.raise_prices(a, s, 1.1, 0.995) == 0.0 and best.offer(s.x, "first feasible choice"):
            break
    return s.price.copy()


def _search(
    searchers: list[Searcher], price: np.ndarray, best: Best, ascent: Ascent, going: Callable[[], bool]
) -> float:
    """Cycles of perturbation and local search until the budget is used up; returns steps done. Once a cycle has found
    nothing better, half of the next is left to the bound.
    """
    total = 0.0
    begin = best.budget.fraction()
    edges = begin + (1 - begin) * np.cumsum(CYCLES)
    with ThreadPoolExecutor(len(searchers)) as pool:
        known = np.inf
        for start, end in zip((begin, *edges[:-1]), edges, strict=True):
            if best.cost == known:
                start = 0.5 * (start + end)
                _climb(ascent, best, going, start)
            known = best.cost
            middle = start + PERTURB_SHARE * (end - start)
            for one in searchers:
                one.restart(best.choice, price, best.cost + best.constant)
                one.state.scalars[1] = np.inf  # improve what this cycle finds, not what the last one did
            total += _phase(pool, searchers, best, Searcher.perturb, (start, middle), going)
            for one in searchers:
                found = np.isfinite(one.state.scalars[1])
                one.restart(one.state.best if found else best.choice, None, best.cost + best.constant)
            total += _phase(pool, searchers, best, Searcher.local_search, (middle, end), going)
    return total


def _phase(
    pool: ThreadPoolExecutor,
    searchers: list[Searcher],
    best: Best,
    step: Callable[[Searcher, float, float], float],
    span: tuple[float, float],
    going: Callable[[], bool],
) -> float:
    """Slices of `step` on every thread, cooling down linearly over the part `span` of the budget."""
    total = 0.0
    fusion = Fusion(best)
    while going() and best.budget.fraction() < span[1]:
        began = time.perf_counter()
        cool = min(1.0, (span[1] - best.budget.fraction()) / max(span[1] - span[0], 1e-9))
        cost = best.cost + best.constant
        steps = list(pool.map(lambda one, cost=cost, cool=cool: step(one, cost, cool), searchers))
        for one, taken in zip(searchers, steps, strict=True):
            best.budget.charge(taken)
            if np.isfinite(one.state.scalars[1]):
                best.offer(one.state.best, "search")
        total += sum(steps)
        fusion([one.state.x for one in searchers])
        if best.budget.work is None and time.perf_counter() - began < 0.1:
            for one in searchers:  # slices long enough to be worth their start, short enough to stop in time
                one.quota = min(one.quota * 2, 1e8)
    return total
