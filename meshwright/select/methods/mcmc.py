"""Simulated annealing in FlexFlow's manner: one random node gets one random option, taken with probability min(1,
exp(-change / T)).
"""

from __future__ import annotations

import numpy as np

from meshwright.select.budget import Budget
from meshwright.select.methods.walk import Keeper, Walk, cheapest, floor_bound
from meshwright.select.problem import Problem

HOT, COLD = 1e-2, 1e-7  # temperature, of the first cost, at the beginning and the end
BATCH = 2000


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    rng = np.random.default_rng(seed)
    walk, keeper = Walk(problem, cheapest(problem)), Keeper(problem)
    width = np.diff(problem.offsets)
    free = np.flatnonzero(width > 1)
    scale = abs(sum(float(walk.prices(i)[walk.x[i]]) for i in range(problem.nodes)))
    moves = taken = 0
    while free.size and not budget.over():
        temperature = scale * HOT * (COLD / HOT) ** budget.fraction()
        picks = rng.choice(free, BATCH)
        options = (rng.random(BATCH) * width[picks]).astype(np.int64)
        chance = -temperature * np.log(rng.random(BATCH))
        for node, option, luck in zip(picks.tolist(), options.tolist(), chance.tolist(), strict=True):
            prices = walk.prices(node)
            change = float(prices[option] - prices[walk.x[node]])
            if change < luck and change + walk.weight * walk.excess(node, option) < luck:
                walk.move(node, option)
                taken += 1
        moves += BATCH
        budget.charge(BATCH * 1000)
        if walk.fits() and keeper.offer(walk.x):
            budget.report("mcmc", cost=keeper.cost)
    keeper.offer(walk.x)
    return keeper.choice.tolist(), floor_bound(problem), [f"{moves} proposals, {taken} taken"]
