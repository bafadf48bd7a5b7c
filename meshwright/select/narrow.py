"""Cores narrow enough for elimination: exact without rows, a tight bound and a good choice with them.

Elimination minimises cost plus priced bytes exactly, so its value less the priced limits is the Lagrangian bound

    q(lambda) = min_x [ cost(x) + sum_r lambda_r (usage_r(x) - limit_r) ],

concave in lambda. `_bisect` finds the best price of the worst row between one too low (its choice is over) and one
too high (its choice fits) by intersecting the two lines cost + lambda (usage - limit) of the choices at hand, which
is exact after few steps. Where more rows bind, `Prices` takes subgradient steps from there.

At the best price a choice that is over and one that fits cost the same, priced. Identical layers flip all at once,
so one may be far over and the other far below. `_mix` takes the one up to some node and the other from there on,
`_fill` flips connected parts in which they differ one at a time: the room between the two is used up to a node or
so.
"""

from __future__ import annotations

import numpy as np

from meshwright.select import elimination
from meshwright.select.budget import Best
from meshwright.select.elimination import Order, TooWideError
from meshwright.select.priced import Prices
from meshwright.select.problem import Floats, Ints, Problem, no_choice
from meshwright.select.reductions.components import connected

# Table entries an order may take; some 100 million are filled in a second.
ENTRIES = 50_000_000
BISECTIONS = 30
SUBGRADIENT_STEPS = 60


def solve(best: Best, done: list[str]) -> bool:
    """Improves `best`; True when the core was narrow."""
    try:
        order = elimination.plan(best.problem, most=ENTRIES, stop=best.budget.over)
    except TooWideError:
        return False
    oracle = _Oracle(best, order)
    choice = oracle(Prices(best.problem).value)
    if not best.problem.feasible(choice):
        prices = _bisect(oracle, choice, best)
        if prices is not None and not best.budget.over():
            _subgradient(oracle, prices, best)
        low, high = oracle.nearest()
        if low is not None and high is not None:
            _fill(best, _mix(best, low, high), low)
    done.append(f"{oracle.calls} eliminations of {best.problem.nodes} nodes, {order.entries} table entries each")
    return True


class _Oracle:
    """Elimination at given prices; remembers the cheapest bound, and the choices closest to the limits from either
    side.
    """

    def __init__(self, best: Best, order: Order) -> None:
        self.best, self.order, self.calls = best, order, 0
        self.prices = Prices(best.problem)
        self.over: tuple[float, Ints] | None = None
        self.fits: tuple[float, Ints] | None = None

    def __call__(self, price: Floats) -> Ints:
        problem, self.prices.value = self.best.problem, price
        filled = self.order.run(problem.costs + self.prices.of_options())
        if np.isinf(filled.value):
            raise no_choice("elimination")
        choice = np.array(filled.choice(), dtype=np.int64)
        self.calls += 1
        self.best.budget.charge(self.order.entries + 2000 * problem.nodes)
        self.best.raise_bound(filled.value - self.prices.of_limits(), "elimination")
        self.best.offer(choice, "elimination")
        self._note(choice)
        return choice

    def _note(self, choice: Ints) -> None:
        problem = self.best.problem
        excess = problem.worst_row(choice)[1]
        cost = problem.total_cost(choice)
        if excess > 0 and (self.over is None or excess < self.over[0]):
            self.over = (excess, choice)
        if excess == 0 and np.isfinite(cost) and (self.fits is None or cost < self.fits[0]):
            self.fits = (cost, choice)

    def nearest(self) -> tuple[Ints | None, Ints | None]:
        """The choice least over, the cheapest that fits."""
        return self.over and self.over[1], self.fits and self.fits[1]


def _bisect(oracle: _Oracle, over: Ints, best: Best) -> Prices | None:
    """The best price of the row that `over` overfills most. None when with it all rows fit; else prices to go on
    from.
    """
    problem, prices = best.problem, Prices(best.problem)
    row, _ = problem.worst_row(over)

    def line(choice: Ints) -> tuple[float, float]:
        return problem.total_cost(choice), float(problem.row_usage(choice)[row] - problem.limits[row])

    low, high = line(over), None
    price = 0.0
    step = max(abs(low[0]), abs(best.bound)) / max(float(problem.limits[row]), low[1])
    for _ in range(BISECTIONS):
        if best.budget.over():
            break
        price = step if high is None else (high[0] - low[0]) / (low[1] - high[1])
        prices.value[row] = price
        cost, excess = line(oracle(prices.value))
        if not np.isfinite(cost):
            break
        if excess > 0:
            if high is not None and cost + price * excess >= low[0] + price * low[1] - 1e-9 * abs(cost):
                break
            low, step = (cost, excess), step * 4
        else:
            if high is not None and cost + price * excess >= high[0] + price * high[1] - 1e-9 * abs(cost):
                break
            high = (cost, excess)
    return None if np.isfinite(best.cost) and len(problem.limits) == 1 else prices


def _subgradient(oracle: _Oracle, prices: Prices, best: Best) -> None:
    """More than one row binds: all prices move."""
    for _ in range(SUBGRADIENT_STEPS):
        choice = oracle(prices.value)
        if best.budget.over() or not prices.step(choice, best.bound):
            break


def _mix(best: Best, over: Ints, fits: Ints) -> Ints:
    """The best feasible choice that is `over` on one side of some node and `fits` on the other."""
    index = np.arange(len(over))
    places = np.flatnonzero(over != fits)
    places = places[:: max(1, len(places) // 400)]
    for cut in places.tolist():
        for first, second in ((over, fits), (fits, over)):
            best.offer(np.where(index <= cut, first, second), "mixing")
    return best.choice


def _fill(best: Best, start: Ints, over: Ints) -> None:
    """Takes connected parts of `over` into `start`, those that save most per byte first, as long as the rows hold."""
    problem, current = best.problem, start.copy()
    moves = []
    for part in _parts(problem, start != over):
        trial = current.copy()
        trial[part] = over[part]
        saved = best.cost - problem.total_cost(trial)
        bytes_more = float(np.maximum(problem.row_usage(trial) - problem.row_usage(current), 0.0).max(initial=0.0))
        if saved > 0:
            moves.append((-saved / max(bytes_more, 1e-300), part))
    for _, part in sorted(moves, key=lambda move: move[0]):
        trial = current.copy()
        trial[part] = over[part]
        if best.offer(trial, "filling"):
            current = trial


def _parts(problem: Problem, differs: np.ndarray) -> list[Ints]:
    """Connected components of the nodes where `differs`."""
    near: dict[int, list[int]] = {int(i): [] for i in np.flatnonzero(differs)}
    for a, b in problem.edge_nodes[differs[problem.edge_nodes].all(axis=1)].tolist():
        near[a].append(b)
        near[b].append(a)
    return [np.array(part) for part in connected(near)]
