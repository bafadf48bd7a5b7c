"""The mutable form that reductions work on: option costs, one matrix per neighbour, uses per node, and a trail.

A reduction changes the graph and leaves a `Step` on the trail; `restore` walks the trail backwards and turns a
choice for the nodes that are left into one for the nodes there were. Costs that no longer depend on a choice
collect in `constant`, bytes that no longer depend on one are taken off `limits`. So at every moment

    min cost(graph) + graph.constant  =  min cost(problem)     and     restore(argmin) attains it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshwright.select.problem import Floats, Ints, Problem


class Step(Protocol):
    """What a reduction did to some nodes; `invert` fills in or renumbers their entries of `choice`."""

    def invert(self, choice: list[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes of every option of one node in each of its row intervals: `bytes[interval, option]`."""

    begin: Ints
    end: Ints
    bytes: Floats

    def take(self, options: Ints) -> Use:
        return Use(self.begin, self.end, self.bytes[:, options])

    def __len__(self) -> int:
        return len(self.begin)


def no_use(options: int) -> Use:
    nothing = np.zeros(0, dtype=np.int64)
    return Use(nothing, nothing, np.zeros((0, options)))


@dataclass(frozen=True, slots=True)
class Keep:
    """Only the options `kept` of `node` are left, in that order."""

    node: int
    kept: Ints

    def invert(self, choice: list[int]) -> None:
        choice[self.node] = int(self.kept[choice[self.node]])


class Graph:
    """`adj[a][b]` has the options of a as rows; `adj[b][a]` is its transposed view of the same memory."""

    def __init__(self, problem: Problem) -> None:
        self.size = problem.nodes
        self.cost: dict[int, Floats] = {
            i: problem.costs[a:b].copy()
            for i, (a, b) in enumerate(zip(problem.offsets[:-1].tolist(), problem.offsets[1:].tolist(), strict=True))
        }
        self.adj: dict[int, dict[int, Floats]] = {i: {} for i in self.cost}
        self.limits = problem.limits.astype(np.float64)
        self.given = problem.limits
        self.rows = np.arange(len(problem.limits))  # of the rows left, their number in the problem
        self.constant = 0.0
        self.trail: list[Step] = []
        self.use = _uses_by_node(problem)
        for (a, b), begin, end in zip(problem.edge_nodes.tolist(), problem.edge_offsets.tolist(),
                                      problem.edge_offsets[1:].tolist(), strict=False):  # fmt: skip
            matrix = problem.edge_costs[begin:end].reshape(len(self.cost[a]), len(self.cost[b]))
            self.join(a, b, matrix)

    def nodes(self) -> list[int]:
        return list(self.cost)

    def edges(self) -> Iterator[tuple[int, int, Floats]]:
        return ((a, b, matrix) for a, near in self.adj.items() for b, matrix in near.items() if a < b)

    def join(self, a: int, b: int, matrix: Floats) -> None:
        """Adds an edge; a second edge between the same nodes is added to the first (parallel edges)."""
        present = self.adj[a].get(b)
        both = matrix if present is None else present + matrix
        self.adj[a][b] = both
        self.adj[b][a] = both.T

    def cut(self, a: int, b: int) -> None:
        del self.adj[a][b], self.adj[b][a]

    def drop(self, node: int) -> None:
        """Removes a node whose part of the cost and of the rows has been moved elsewhere."""
        for other in list(self.adj[node]):
            self.cut(node, other)
        del self.cost[node], self.adj[node], self.use[node]

    def keep(self, node: int, kept: Ints) -> None:
        """Forgets all options of a node but `kept`."""
        self.trail.append(Keep(node, kept))
        self.cost[node] = self.cost[node][kept]
        self.use[node] = self.use[node].take(kept)
        near = self.adj[node]
        for other in near:
            near[other] = near[other][kept]
            self.adj[other][node] = near[other].T

    def restore(self, choice: dict[int, int]) -> list[int]:
        """The choice for all nodes that belongs to `choice` for the nodes left. The trail is not consumed."""
        full = [choice.get(node, 0) for node in range(self.size)]
        for step in reversed(self.trail):
            step.invert(full)
        return full


def _uses_by_node(problem: Problem) -> dict[int, Use]:
    """Groups the flat uses by node and interval; bytes of the same option and interval add up."""
    found = {i: no_use(n) for i, n in enumerate(np.diff(problem.offsets).tolist())}
    alive = problem.use_end > problem.use_begin
    node, begin, end = problem.use_node[alive], problem.use_begin[alive], problem.use_end[alive]
    local = problem.use_option[alive] - problem.offsets[node]
    order = np.lexsort((end, begin, node))
    node, begin, end, local = node[order], begin[order], end[order], local[order]
    size = problem.use_bytes[alive][order]
    if not len(node):
        return found
    new = np.concatenate(([True], (np.diff(node) != 0) | (np.diff(begin) != 0) | (np.diff(end) != 0)))
    interval = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    for i, lo, hi in _runs(node):
        base = interval[lo]
        table = np.zeros((int(interval[hi - 1] - base) + 1, found[i].bytes.shape[1]))
        np.add.at(table, (interval[lo:hi] - base, local[lo:hi]), size[lo:hi])
        where = first[base : interval[hi - 1] + 1]
        found[i] = Use(begin[where], end[where], table)
    return found


def _runs(values: Ints) -> Iterator[tuple[int, int, int]]:
    """(value, start, stop) of each run of equal values."""
    starts = np.flatnonzero(np.concatenate(([True], np.diff(values) != 0)))
    stops: Sequence[int] = [*starts[1:].tolist(), len(values)]
    return zip(values[starts].tolist(), starts.tolist(), stops, strict=True)
