"""Monte Carlo tree search over the nodes in order: UCT down the tree, then a greedy completion with some noise.

The tree covers the first nodes that have a choice; a level is one node, an arm one option. The reward of a
completion is how far it is below the mean so far, in standard deviations.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.budget import Budget
from meshwright.select.methods.walk import Keeper, Walk, cheapest, floor_bound
from meshwright.select.problem import Problem

EXPLORE = 0.7
NOISE = 0.02


class _Arms:
    """Visits and mean reward of each option after one prefix of decisions."""

    def __init__(self, options: int) -> None:
        self.visits = np.zeros(options)
        self.value = np.zeros(options)
        self.next: dict[int, _Arms] = {}

    def pick(self) -> int:
        bonus = EXPLORE * np.sqrt(np.log(self.visits.sum() + 1) / np.maximum(self.visits, 1e-9))
        return int(np.where(self.visits == 0, np.inf, self.value + bonus).argmax())


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    rng = np.random.default_rng(seed)
    walk, keeper = Walk(problem, cheapest(problem)), Keeper(problem)
    order = [i for i in range(problem.nodes) if problem.options(i) > 1]
    root = _Arms(problem.options(order[0])) if order else None
    energies: list[float] = []
    while root is not None and not budget.over():
        path, node = [], root
        for level, i in enumerate(order):
            option = node.pick()
            path.append((node, option))
            walk.move(i, option)
            if option not in node.next:
                if level + 1 < len(order):
                    node.next[option] = _Arms(problem.options(order[level + 1]))
                break
            node = node.next[option]
        budget.charge(10_000 + 1000 * len(path))
        energy = _complete(walk, order[len(path) :], rng, budget)
        energies.append(energy)
        keeper.offer(walk.x)
        budget.report("mcts", cost=keeper.cost)
        reward = (np.mean(energies) - energy) / (np.std(energies) + 1e-12)
        for arms, option in path:
            arms.visits[option] += 1
            arms.value[option] += (np.tanh(reward) - arms.value[option]) / arms.visits[option]
    return keeper.choice.tolist(), floor_bound(problem), [f"{len(energies)} completions"]


def _complete(walk: Walk, rest: list[int], rng: np.random.Generator, budget: Budget) -> float:
    """Gives every remaining node its best option in turn; returns the energy of the choice."""
    for i in rest:
        if budget.over():
            break
        prices = walk.prices(i)
        prices = prices + NOISE * float(np.abs(prices).min()) * rng.random(len(prices))
        for option in np.argsort(prices, kind="stable").tolist():
            if walk.excess(i, option) <= 0:
                walk.move(i, option)
                break
        budget.charge(1000)
    cost = float(walk.problem.total_cost(walk.x))
    over = np.maximum(walk.usage - walk.problem.limits, 0.0)
    return min(cost, walk.barrier) + walk.weight * float((over / walk.size).sum())
