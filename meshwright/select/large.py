"""The engine for large cores: prices and bound first, then annealed large-neighbourhood search on one or two threads.

1. `Ascent` runs for a share of the time; every choice it decodes is a candidate, and its prices tell what memory is
worth. 2. If none was feasible, `_force` alternates exact forest sweeps at the current prices with higher prices for
rows that are over. 3. Searches (`kernels.search.anneal`), one per thread, anneal in cycles of growing length;
between cycles all go on from the best.

Slices of equal work end before anything is compared, so two threads give the same result as one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from meshwright.select.best import Best
from meshwright.select.dual import Ascent, row_units
from meshwright.select.kernels import rows, search
from meshwright.select.kernels.arrays import Arrays, lay_out
from meshwright.select.kernels.forest import Forest, new_forest
from meshwright.select.kernels.jit import HAVE_NUMBA
from meshwright.select.problem import Ints

ASCENT_SHARE = 0.15  # of the budget
CYCLES = (0.15, 0.25, 0.6)  # shares of what is left
LARGEST_FOREST = 400
HEAT = 0.1  # noise per option at the start of a cycle, in units of cost per node
SLACK = 3e-5  # what a move may lose at the start of a cycle, of the cost
FIRST_PRICE = 0.003  # of the cost per limit
DECAY = 0.999  # of prices per feasible move


@dataclass(slots=True)
class Searcher:
    """One thread's search."""

    arrays: Arrays
    forest: Forest
    state: search.State
    rng: np.random.Generator
    quota: float = 1e5

    def restart(self, choice: Ints, price: np.ndarray, cost: float) -> None:
        s = self.state
        for x in (s.x, s.best, s.trial):
            x[:] = choice
        s.price[:] = price
        rows.fill_usage(self.arrays, s.x, s.usage)
        s.scalars[:] = rows.total_cost(self.arrays, s.x)
        s.unit[:] = FIRST_PRICE * abs(cost) / row_units(self.arrays)

    def slice(self, cost: float, cool: float) -> float:
        """About `quota` steps of annealing; returns steps done."""
        s, a = self.state, self.arrays
        nodes = len(s.x)
        rand = self.rng.random(max(100_000, 20 * nodes))
        noise = self.rng.standard_exponential(2 * len(a.costs) + 2000)
        heat, slack = HEAT * cool * abs(cost) / nodes, SLACK * cool * abs(cost)
        steps, _, _ = search.anneal(a, self.forest, s, rand, noise, self.quota, LARGEST_FOREST, heat, slack, DECAY)
        s.scalars[0] = rows.total_cost(a, s.x)  # forget rounding
        rows.fill_usage(a, s.x, s.usage)
        return steps


def solve(best: Best, seed: int, done: list[str], listen: Callable[[], bool] | None = None) -> None:
    """Improves `best`. `listen`, called between slices, may bring in what another solver found and says whether to go
    on; with it only one thread is used here, the other core being taken.
    """
    a = lay_out(best.problem)

    def going() -> bool:
        return (listen is None or listen()) and not best.budget.over()

    ascent = _climb(Ascent(a), best, going)
    done.append(f"{ascent.passes} passes of message passing, bound {ascent.bound + best.constant:.9g}")
    threads = 1 if listen is not None or not HAVE_NUMBA else 2
    searchers = [_searcher(a, ascent.x, seed, i) for i in range(threads)]
    price = ascent.best_price
    if not np.isfinite(best.cost):
        price = _force(searchers[0], price, best, going)
    if np.isfinite(best.cost):
        steps = _search(searchers, price, best, going)
        done.append(f"large-neighbourhood search on {threads} threads, {steps:.3g} steps")
    else:
        best.choice = searchers[0].state.x


def _searcher(a: Arrays, x: Ints, seed: int, number: int) -> Searcher:
    return Searcher(a, new_forest(a), search.new_state(a, x), np.random.default_rng((seed, number)))


def _climb(ascent: Ascent, best: Best, going: Callable[[], bool]) -> Ascent:
    """Ascends for its share of the budget."""
    until = best.budget.fraction() + ASCENT_SHARE * (1 - best.budget.fraction())
    while going() and best.budget.fraction() < until:
        best.budget.charge(ascent.step())
        best.offer(ascent.x, "bound")
        best.raise_bound(ascent.bound, "bound")
    return ascent


def _force(searcher: Searcher, price: np.ndarray, best: Best, going: Callable[[], bool]) -> np.ndarray:
    """Sweeps and raises prices until a choice is feasible; returns the prices that did it."""
    s, a = searcher.state, searcher.arrays
    nodes = len(s.x)
    noise = searcher.rng.standard_exponential(len(a.costs) + 1)
    s.price[:] = price
    while going():
        s.unit[:] = FIRST_PRICE * abs(rows.total_cost(a, s.x)) / row_units(a)
        for _ in range(3):
            rand = searcher.rng.random(4 * nodes + 1000)
            best.budget.charge(search.sweep(a, searcher.forest, s, rand, noise, nodes, max(1, nodes // 40), 0.0))
        over = search.press(a, s, 1.1, 0.995)
        if over == 0.0 and best.offer(s.x, "first feasible choice"):
            break
    return s.price.copy()


def _search(searchers: list[Searcher], price: np.ndarray, best: Best, going: Callable[[], bool]) -> float:
    """Anneals in cycles until the budget is used up; returns steps done."""
    total = 0.0
    begin = best.budget.fraction()
    edges = begin + (1 - begin) * np.cumsum(CYCLES)
    with ThreadPoolExecutor(len(searchers)) as pool:
        for start, end in zip((begin, *edges[:-1]), edges, strict=True):
            for one in searchers:
                one.restart(best.choice, price, best.cost + best.constant)
            while going() and best.budget.fraction() < end:
                part = (best.budget.fraction() - start) / max(end - start, 1e-9)
                total += _round(pool, searchers, best, max(0.0, 1 - part) ** 2)
            price = min(searchers, key=lambda one: one.state.scalars[1]).state.price.copy()
    return total


def _round(pool: ThreadPoolExecutor, searchers: list[Searcher], best: Best, cool: float) -> float:
    """One slice on every thread."""
    began = time.perf_counter()
    cost = best.cost + best.constant
    steps = list(pool.map(lambda one: one.slice(cost, cool), searchers))
    for one, taken in zip(searchers, steps, strict=True):
        best.budget.charge(taken)
        best.offer(one.state.best, "search")
    if best.budget.work is None and time.perf_counter() - began < 0.1:
        for one in searchers:  # slices long enough to be worth their start, short enough to stop in time
            one.quota = min(one.quota * 2, 1e8)
    return float(sum(steps))
