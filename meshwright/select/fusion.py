"""Fusion: the best mixture of several choices, by elimination.

A node keeps the options that one of the choices gives it. Most nodes have one option left then, the others two or
three: what is too wide as a whole is narrow, and elimination minimises over all mixtures at once (`narrow`, which
also prices the rows). A search over forests leaves one part of the graph well chosen here and another there, and small
moves that would join the best of both lead over choices that are worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.select import narrow
from meshwright.select.budget import Best
from meshwright.select.flatten import flatten
from meshwright.select.problem import InfeasibleError, Ints, Problem, join, running
from meshwright.select.reductions import reduce

# Elementary steps that take as long as putting up and reducing the problem takes for one edge.
STEPS_PER_EDGE = 100_000


@dataclass(frozen=True, slots=True)
class Restricted:
    """`problem` is over the nodes in which choices differ; `kept` has the options each of these keeps."""

    problem: Problem
    choice: Ints
    kept: dict[int, Ints]

    def invert(self, picked: Sequence[int]) -> Ints:
        """The choice of all nodes that belongs to one of `problem`."""
        found = self.choice.copy()
        for (node, options), option in zip(self.kept.items(), picked, strict=True):
            found[node] = options[option]
        return found


class Fusion:
    """Of what a search comes to, again and again. As much of the budget as one took is left to the search before the
    next, and twice as much as the time before when it found nothing better.
    """

    def __init__(self, best: Best) -> None:
        self.best = best
        self.ended = best.budget.used()
        self.pause = 0.0

    def __call__(self, choices: Sequence[Ints]) -> None:
        budget, known = self.best.budget, self.best.cost
        began = budget.used()
        if began - self.ended < self.pause:
            return
        budget.charge(fuse(self.best, choices))
        self.ended = budget.used()
        taken = self.ended - began
        self.pause = taken if self.best.cost < known else max(taken, 2 * self.pause)


def fuse(best: Best, choices: Sequence[Ints]) -> float:
    """Offers the best mixture found of the best choice and `choices`; returns steps done."""
    small = restrict(best.problem, [best.choice, *choices])
    if not small.kept:
        return 0.0
    budget = best.budget.share(1.0)
    try:
        graph = reduce(small.problem, best.budget.over)
        core, ids = flatten(graph)
        found = Best(core, budget, graph.constant, np.zeros(core.nodes, dtype=np.int64))
        if not core.nodes or (narrow.solve(found, []) and np.isfinite(found.cost)):
            best.offer(small.invert(graph.restore(dict(zip(ids, found.choice.tolist(), strict=True)))), "fusion")
    except InfeasibleError:
        pass  # rounding: the best choice itself is one of the mixtures
    return STEPS_PER_EDGE * small.problem.edges + 1e6 * budget.spent


def restrict(problem: Problem, choices: Sequence[Ints]) -> Restricted:
    """The problem of mixing these choices; all nodes on which they agree are folded into it."""
    table = np.stack(choices)
    differs = (table != table[0]).any(axis=0)
    kept = {node: np.unique(table[:, node]) for node in np.flatnonzero(differs).tolist()}
    place = {node: i for i, node in enumerate(kept)}
    costs = {node: problem.costs[problem.offsets[node] + options] for node, options in kept.items()}
    edges, matrices = [], []
    for edge in np.flatnonzero(differs[problem.edge_nodes].any(axis=1)).tolist():
        a, b = problem.edge_nodes[edge].tolist()
        matrix = problem.matrix(edge)
        if a not in kept:
            costs[b] += matrix[table[0, a], kept[b]]
        elif b not in kept:
            costs[a] += matrix[kept[a], table[0, b]]
        else:
            edges.append((place[a], place[b]))
            matrices.append(matrix[np.ix_(kept[a], kept[b])].reshape(-1))
    stay = [problem.offsets[node] + options for node, options in kept.items()]
    number = np.full(len(problem.costs), -1)
    number[np.concatenate([*stay, np.zeros(0, dtype=np.int64)])] = np.arange(sum(map(len, stay)))
    used = number[problem.use_option] >= 0
    found = Problem(
        offsets=running([len(options) for options in kept.values()]),
        costs=join(list(costs.values())),
        edge_nodes=np.array(edges, dtype=np.int64).reshape(-1, 2),
        edge_offsets=running([len(matrix) for matrix in matrices]),
        edge_costs=join(matrices),
        limits=problem.limits - problem.row_usage(table[0], ~differs),
        use_option=number[problem.use_option[used]],
        use_begin=problem.use_begin[used],
        use_end=problem.use_end[used],
        use_bytes=problem.use_bytes[used],
    )
    return Restricted(found, table[0], kept)
