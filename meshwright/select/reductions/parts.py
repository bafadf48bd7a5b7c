"""Independent parts: sets of nodes that neither an edge nor a row joins to others. Each is a problem of its own.

A use that spans several rows joins these rows: the node in it is in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.select.problem import Ints, Problem, running


@dataclass(frozen=True, slots=True)
class Parts:
    """The nodes of each part, in its order."""

    nodes: tuple[Ints, ...]

    def invert(self, choices: Sequence[Sequence[int]]) -> list[int]:
        """The choice for all nodes that belongs to one for each part."""
        found = [0] * sum(map(len, self.nodes))
        for nodes, choice in zip(self.nodes, choices, strict=True):
            for node, option in zip(nodes.tolist(), choice, strict=True):
                found[node] = option
        return found


def apply(problem: Problem) -> tuple[list[Problem], Parts]:
    """The parts, those with fewest options first, and the way back."""
    label = _labels(problem)
    options = np.diff(problem.offsets)
    sizes = np.bincount(label, options).astype(np.int64)
    order = np.argsort(sizes, kind="stable")
    if len(order) <= 1:
        return [problem], Parts((np.arange(problem.nodes),))
    nodes = tuple(np.flatnonzero(label == part) for part in order)
    return [_only(problem, label == part) for part in order], Parts(nodes)


def _labels(problem: Problem) -> Ints:
    """The number of the part of every node."""
    group = _row_groups(problem)
    owner = np.arange(problem.nodes + int(group.max(initial=-1)) + 1)

    def root(one: int) -> int:
        while owner[one] != one:
            owner[one] = owner[owner[one]]
            one = int(owner[one])
        return one

    some = problem.use_end > problem.use_begin
    in_row = np.stack((problem.use_node[some], problem.nodes + group[problem.use_begin[some]]), axis=1)
    for a, b in np.unique(np.concatenate((problem.edge_nodes, in_row)), axis=0).tolist():
        owner[root(b)] = root(a)
    roots = [root(node) for node in range(problem.nodes)]
    return np.unique(roots, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _row_groups(problem: Problem) -> Ints:
    """Rows that a chain of uses joins have the same number."""
    rows = len(problem.limits)
    some = problem.use_end > problem.use_begin
    spans = np.zeros(rows + 1, dtype=np.int64)  # uses that are in this row and in the next
    np.add.at(spans, problem.use_begin[some], 1)
    np.subtract.at(spans, problem.use_end[some] - 1, 1)
    apart = np.cumsum(spans)[: max(rows - 1, 0)] == 0
    return np.concatenate(([0], np.cumsum(apart))).astype(np.int64)[:rows]


def _only(problem: Problem, mine: np.ndarray) -> Problem:
    """The nodes `mine`, with their edges and the rows they use."""
    width = np.diff(problem.offsets)
    option = np.repeat(mine, width)
    edge = mine[problem.edge_nodes[:, 0]]
    use = option[problem.use_option] & (problem.use_end > problem.use_begin)
    used = np.zeros(len(problem.limits) + 1)
    np.add.at(used, problem.use_begin[use], 1)
    np.subtract.at(used, problem.use_end[use], 1)
    row = np.cumsum(used)[:-1] > 0
    row_at = np.concatenate(([0], np.cumsum(row))).astype(np.int64)
    sizes = np.diff(problem.edge_offsets)
    return replace(
        problem,
        offsets=running(width[mine]),
        costs=problem.costs[option],
        edge_nodes=(np.cumsum(mine) - 1)[problem.edge_nodes[edge]].reshape(-1, 2),
        edge_offsets=running(sizes[edge]),
        edge_costs=problem.edge_costs[np.repeat(edge, sizes)],
        limits=problem.limits[row],
        use_option=(np.cumsum(option) - 1)[problem.use_option[use]],
        use_begin=row_at[problem.use_begin[use]],
        use_end=row_at[problem.use_end[use]],
        use_bytes=problem.use_bytes[use],
        names=tuple(name for name, one in zip(problem.names, mine, strict=True) if one) if problem.names else (),
    )
