"""Recursive bisection: a run of nodes is halved, each half solved in turn with the other as it stands, and so on
down to single nodes; then again, until nothing changes. Rows enter by prices, raised after every round that
overfills them.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.budget import Budget
from meshwright.select.methods.walk import Keeper, Walk, cheapest, floor_bound
from meshwright.select.priced import Prices
from meshwright.select.problem import Floats, Problem


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    walk, keeper, prices = Walk(problem, cheapest(problem)), Keeper(problem), Prices(problem)
    rounds = 0
    while not budget.over():
        paid = prices.of_options()
        changed = _halve(walk, paid, 0, problem.nodes, budget)
        keeper.offer(walk.x)
        budget.report("recursive", cost=keeper.cost)
        rounds += 1
        moved = prices.step(walk.x, keeper.cost if np.isfinite(keeper.cost) else 0.0)
        if not changed and not moved:
            break
    return keeper.choice.tolist(), floor_bound(problem), [f"{rounds} rounds of bisection"]


def _halve(walk: Walk, paid: Floats, low: int, high: int, budget: Budget) -> bool:
    """Solves nodes [low, high): the halves, then the second half given the first anew. True when an option changed."""
    if high - low < 1 or budget.over():
        return False
    if high - low == 1:
        return _single(walk, paid, low, budget)
    middle = (low + high) // 2
    changed = _halve(walk, paid, low, middle, budget)
    changed |= _halve(walk, paid, middle, high, budget)
    band = range(middle - 1, max(low, middle - 1 - (high - low) // 4) - 1, -1)
    for node in band:  # the border once more, from the cut
        changed |= _single(walk, paid, node, budget)
    return changed


def _single(walk: Walk, paid: Floats, node: int, budget: Budget) -> bool:
    offset = walk.problem.offsets
    total = walk.prices(node) + paid[offset[node] : offset[node + 1]]
    option = int(total.argmin())
    budget.charge(1000)
    if total[option] < total[walk.x[node]]:
        walk.move(node, option)
        return True
    return False
