"""Breadth-first over the nodes with a width: of all ways to extend the partial choices by one node, the cheapest
few that still fit stay.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.budget import Budget
from meshwright.select.graph import Use
from meshwright.select.methods.walk import Keeper, Walk, cheapest, floor_bound
from meshwright.select.problem import Floats, Ints, Problem

WIDTH = 16


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    """Widths 1, 2, 4, ... up to WIDTH and beyond as long as the budget lasts; the last complete one that is best
    counts.
    """
    walk, keeper = Walk(problem, cheapest(problem)), Keeper(problem)
    width, done = 1, []
    while not budget.over():
        choice = _pass(walk, budget, width)
        if choice is None:
            done.append(f"width {width}: stopped at the limit")
            break
        keeper.offer(choice)
        budget.report("beam", cost=keeper.cost)
        done.append(f"width {width}: cost {problem.total_cost(choice):.6g}")
        width *= 2
        if width > max(WIDTH, 2 ** int(np.log2(1e6 / max(problem.nodes, 1) + 1))):
            break
    return keeper.choice.tolist(), floor_bound(problem), done


def _pass(walk: Walk, budget: Budget, width: int) -> Ints | None:
    problem = walk.problem
    least = _least(walk)
    choices = np.zeros((1, problem.nodes), dtype=np.int64)
    costs = np.zeros(1)
    usage = np.tile(least, (1, 1))
    for node in range(problem.nodes):
        if budget.over():
            return None
        table = costs[:, None] + walk.cost[node]
        for other, matrix in walk.near[node]:
            if other < node:
                table = table + matrix[:, choices[:, other]].T
        kept = _keep(table, usage, walk.graph.use[node], problem.limits, width)
        rows, options = np.array([k[0] for k in kept]), np.array([k[1] for k in kept])
        choices = choices[rows]
        choices[:, node] = options
        costs, usage = table[rows, options], np.stack([k[2] for k in kept])
        budget.charge(table.size + usage.size)
    return np.array(choices[int(costs.argmin())])


def _keep(table: Floats, usage: Floats, use: Use, limits: Floats, width: int) -> list[tuple[int, int, Floats]]:
    """The cheapest extensions that fit; when none does, the one least over."""
    kept: list[tuple[int, int, Floats]] = []
    spare: tuple[float, int, int, Floats] | None = None
    for flat in np.argsort(table, axis=None, kind="stable")[: 4 * width + use.bytes.shape[1]].tolist():
        row, option = divmod(flat, table.shape[1])
        after = _after(usage[row], use, option)
        over = float((after - limits).max(initial=0.0))
        if over <= 0:
            kept.append((row, option, after))
            if len(kept) == width:
                break
        elif spare is None or over < spare[0]:
            spare = (over, row, option, after)
    if kept:
        return kept
    assert spare is not None
    return [spare[1:]]


def _after(usage: Floats, use: Use, option: int) -> Floats:
    """Usage once the node, counted at its least so far, takes the option."""
    if not len(use):
        return usage
    after = usage.copy()
    least = use.bytes.min(axis=1)
    for begin, end, size, low in zip(use.begin.tolist(), use.end.tolist(), use.bytes[:, option], least, strict=True):
        after[begin:end] += size - low
    return after


def _least(walk: Walk) -> Floats:
    """Usage with every node at its least in every interval."""
    usage = np.zeros(len(walk.problem.limits))
    for use in walk.graph.use.values():
        for begin, end, size in zip(use.begin.tolist(), use.end.tolist(), use.bytes, strict=True):
            usage[begin:end] += size.min()
    return usage
