"""The least cost for every combination of options of a few kept nodes, all other nodes chosen best.

Factors are tables over nodes: a node's costs, an edge's matrix. To eliminate a node, add up the factors it appears in
and take the minimum over its options; what is left when only kept nodes remain is the answer. `Tables.choice` reads
back a choice for one combination, last eliminated first. Rows are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.errors import ProblemError
from meshwright.select.dominance import undominated
from meshwright.select.problem import Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class Factor:
    """A table with one axis per node, in the order of `nodes`."""

    nodes: tuple[int, ...]
    table: Floats

    def over(self, nodes: Sequence[int]) -> Floats:
        """The table shaped to broadcast over these nodes, which include its own."""
        order = [self.nodes.index(node) for node in nodes if node in self.nodes]
        shape = [self.table.shape[self.nodes.index(node)] if node in self.nodes else 1 for node in nodes]
        return self.table.transpose(order).reshape(shape)

    def at(self, choice: Sequence[int], free: int) -> Floats:
        """The entries for a choice of all nodes but one."""
        return self.table[tuple(slice(None) if node == free else choice[node] for node in self.nodes)]


@dataclass(frozen=True, slots=True)
class Tables:
    """`costs` has one axis per kept node; +inf where no choice exists. `remaining`: options left to each node."""

    kept: tuple[int, ...]
    costs: Floats
    steps: tuple[tuple[int, tuple[Factor, ...]], ...]
    remaining: tuple[Ints, ...]

    def choice(self, options: Sequence[int]) -> list[int]:
        """A best choice of all nodes with these options of the kept ones."""
        if not np.isfinite(self.costs[tuple(options)]):
            raise ProblemError(f"options {tuple(options)} of nodes {self.kept}", "a combination of finite cost")
        found = [0] * len(self.remaining)
        for node, option in zip(self.kept, options, strict=True):
            found[node] = option
        for node, factors in reversed(self.steps):
            found[node] = int(np.argmin(sum(factor.at(found, node) for factor in factors)))
        return [int(options[option]) for options, option in zip(self.remaining, found, strict=True)]


def tables(problem: Problem, kept: Sequence[int], most_entries: float = 2e8) -> Tables:
    """Drops dominated options, then eliminates the node whose table is smallest first."""
    remaining = undominated(problem, kept)
    width = [len(options) for options in remaining]
    factors = _factors(problem, remaining)
    waiting = set(range(problem.nodes)) - set(kept)
    steps: list[tuple[int, tuple[Factor, ...]]] = []
    while waiting:
        node, around = _cheapest(factors, waiting, width, most_entries)
        own = tuple(factor for factor in factors if node in factor.nodes)
        total = _sum(own, (node, *around))
        factors = [factor for factor in factors if node not in factor.nodes]
        factors.append(Factor(around, total.min(axis=0)))
        steps.append((node, own))
        waiting.discard(node)
    shape = [width[node] for node in kept]
    costs = np.broadcast_to(_sum(tuple(factors), tuple(kept)), shape).copy()
    return Tables(tuple(kept), costs, tuple(steps), tuple(remaining))


def _factors(problem: Problem, remaining: list[Ints]) -> list[Factor]:
    found = [
        Factor((node,), problem.costs[problem.offsets[node] : problem.offsets[node + 1]][options])
        for node, options in enumerate(remaining)
    ]
    joined: dict[tuple[int, int], Floats] = {}
    for edge, (a, b) in enumerate(problem.edge_nodes.tolist()):
        matrix = problem.matrix(edge)[np.ix_(remaining[a], remaining[b])]
        pair = (min(a, b), max(a, b))
        matrix = matrix if a < b else matrix.T
        joined[pair] = joined[pair] + matrix if pair in joined else matrix
    return found + [Factor(pair, matrix) for pair, matrix in joined.items()]


def _cheapest(factors: list[Factor], waiting: set[int], width: list[int], most: float) -> tuple[int, tuple[int, ...]]:
    near: dict[int, set[int]] = {node: set() for node in waiting}
    for factor in factors:
        for node in factor.nodes:
            if node in near:
                near[node].update(factor.nodes)

    def entries(node: int) -> int:
        return prod(width[other] for other in near[node] | {node})

    best = min(sorted(waiting), key=entries)
    if entries(best) > most:
        raise ProblemError(f"a table of {entries(best):,} entries", f"at most {most:,.0f}", "use `solve` instead")
    return best, tuple(sorted(near[best] - {best}))


def _sum(factors: tuple[Factor, ...], nodes: tuple[int, ...]) -> Floats:
    total: Floats = np.zeros((1,) * len(nodes))
    for factor in sorted(factors, key=lambda one: one.table.size):
        total = total + factor.over(nodes)
    return total
