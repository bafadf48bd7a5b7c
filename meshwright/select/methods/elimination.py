"""Dynamic programming over a tree decomposition of the whole problem, rows by prices.

Without rows that bind the result is the optimum. Otherwise prices ascend on the Lagrangian dual, each step one
elimination: the bound is the dual's, the choice the best feasible one met on the way.
"""

from __future__ import annotations

import numpy as np

from meshwright.select import elimination
from meshwright.select.budget import Budget
from meshwright.select.methods.walk import Keeper, floor_bound
from meshwright.select.priced import Prices
from meshwright.select.problem import Problem, no_choice

# Table entries beyond which memory and time run out.
WIDEST = 100_000_000


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    keeper = Keeper(problem)
    try:
        order = elimination.plan(problem, most=WIDEST, stop=budget.over)
    except elimination.TooWideError as wide:
        return keeper.choice.tolist(), floor_bound(problem), [f"not narrow: {wide.given}"]
    prices = Prices(problem)
    bound, steps = -np.inf, 0
    while True:
        filled = order.run(problem.costs + prices.of_options())
        if np.isinf(filled.value):
            raise no_choice("elimination", problem)
        choice = np.array(filled.choice())
        bound = max(bound, filled.value - prices.of_limits())
        keeper.offer(choice)
        budget.charge(order.entries + 2000 * problem.nodes)
        budget.report("elimination", cost=keeper.cost, bound=min(bound, keeper.cost))
        steps += 1
        if budget.over() or not prices.step(choice, bound):
            break
    return keeper.choice.tolist(), bound, [f"{steps} eliminations of {order.entries} table entries"]
