"""The mutable form that reductions work on: option costs, one matrix per neighbour, uses per node, and a trail.

A reduction changes the graph and leaves a `Step` on the trail; `restore` walks the trail backwards and turns a
choice for the nodes that are left into one for the nodes there were. Costs that no longer depend on a choice
collect in `constant`, bytes that no longer depend on one are taken off `limits`. So at every moment

    min cost(graph) + graph.constant  =  min cost(problem)     and     restore(argmin) attains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from meshwright.select.problem import Floats, Ints, Problem, running


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


class Items(NamedTuple):
    """Uses by node and interval. Item m of node i (start[i] <= m < start[i + 1]) takes bytes[first[m] + s] with option
    s in rows begin[m] to end[m].
    """

    start: Ints
    begin: Ints
    end: Ints
    first: Ints
    bytes: Floats


def items_of(problem: Problem) -> Items:
    """Bytes of the same option and interval add up."""
    order = np.lexsort((problem.use_end, problem.use_begin, problem.use_node))
    order = order[(problem.use_end > problem.use_begin)[order]]
    node, begin, end = problem.use_node[order], problem.use_begin[order], problem.use_end[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(node) != 0) | (np.diff(begin) != 0) | (np.diff(end) != 0)
    first = running(np.diff(problem.offsets)[node[new]])
    size = np.zeros(first[-1])
    place = first[np.cumsum(new) - 1] + problem.use_option[order] - problem.offsets[node]
    np.add.at(size, place, problem.use_bytes[order])
    return Items(running(np.bincount(node[new], minlength=problem.nodes)), begin[new], end[new], first, size)


def _uses_by_node(problem: Problem) -> dict[int, Use]:
    items, found = items_of(problem), {}
    for node, options in enumerate(np.diff(problem.offsets).tolist()):
        a, b = items.start[node : node + 2].tolist()
        table = items.bytes[items.first[a] : items.first[b]].reshape(b - a, options)
        found[node] = Use(items.begin[a:b], items.end[a:b], table)
    return found
