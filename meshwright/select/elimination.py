"""Exact minimisation of node and edge costs by eliminating one node after another: dynamic programming over a tree
decomposition.

To eliminate node v, add up its cost and every table in which it appears and take the minimum over its options:

    m(x_N) = min_s [ c_v(s) + sum of tables(s, x_N) ],     N the nodes that share a table with v.

The result is a table over N. `plan` picks the order greedily (the node whose table is smallest first) and says how
large the tables get; `run` fills them for given node costs, so that a solve for many prices plans once. Rows are
not looked at: callers put them into the node costs with a price (`lagrange`) or have none.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from meshwright.select.problem import Floats, Problem


@dataclass(frozen=True, slots=True)
class Elimination:
    """One step: `node` goes, `near` are the other nodes of its table, `edges` and `tables` what is added up to make
    it.
    """

    node: int
    near: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]  # (edge, neighbour)
    tables: tuple[int, ...]  # results of earlier steps


@dataclass(frozen=True, slots=True)
class Order:
    """An elimination order and the number of table entries it takes."""

    steps: tuple[Elimination, ...]
    entries: int
    largest: int


def plan(problem: Problem, most: float = float("inf")) -> Order | None:
    """Eliminates the node with the smallest table first (a greedy tree decomposition). None when that takes more than
    `most` table entries in all.
    """
    width = np.diff(problem.offsets).tolist()
    near: list[set[int]] = [set() for _ in width]
    held: list[list[tuple[int, int]]] = [[] for _ in width]
    for edge, (a, b) in enumerate(problem.edge_nodes.tolist()):
        near[a].add(b)
        near[b].add(a)
        held[a].append((edge, b))
        held[b].append((edge, a))
    tables: list[list[int]] = [[] for _ in width]
    heap = [(_size(v, near, width), v) for v in range(len(width))]
    heapq.heapify(heap)
    gone = [False] * len(width)
    steps: list[Elimination] = []
    entries = largest = 0
    while heap:
        size, v = heapq.heappop(heap)
        if gone[v] or size != _size(v, near, width):
            continue
        gone[v] = True
        rest = tuple(sorted(near[v]))
        edges = tuple((e, w) for e, w in held[v] if not gone[w])
        steps.append(Elimination(v, rest, edges, tuple(tables[v])))
        entries, largest = entries + size, max(largest, size)
        if entries > most:
            return None
        used = set(tables[v])
        for a in rest:
            near[a].discard(v)
            near[a].update(b for b in rest if b != a)
            tables[a] = [t for t in tables[a] if t not in used] + [len(steps) - 1]
        for a in rest:
            heapq.heappush(heap, (_size(a, near, width), a))
    return Order(tuple(steps), entries, largest)


def _size(v: int, near: list[set[int]], width: list[int]) -> int:
    return width[v] * prod(width[a] for a in near[v])


def run(problem: Problem, order: Order, costs: Floats) -> tuple[float, list[int]]:
    """The least total for the option costs `costs` and a choice that attains it."""
    messages: list[Floats] = []
    best: list[npt.NDArray[np.intp]] = []
    total = 0.0
    for step in order.steps:
        axis = {node: i + 1 for i, node in enumerate(step.near)}
        a = step.node
        table = costs[problem.offsets[a] : problem.offsets[a + 1]].reshape(-1, *(1,) * len(step.near))
        for edge, other in step.edges:
            matrix = problem.matrix(edge)
            matrix = matrix if problem.edge_nodes[edge, 0] == a else matrix.T
            table = table + _spread(matrix, (0, axis[other]), len(axis) + 1)
        for index in step.tables:
            scope = order.steps[index].near
            table = table + _spread(messages[index], tuple(0 if n == a else axis[n] for n in scope), len(axis) + 1)
        pick = table.argmin(axis=0)
        least = np.take_along_axis(table, pick[None], axis=0)[0]
        best.append(pick)
        messages.append(least)
        if not step.near:
            total += float(least)
    return total, _read_back(order, best, problem.nodes)


def _spread(table: Floats, axes: tuple[int, ...], rank: int) -> Floats:
    """Places the axes of `table` at `axes` of an array of `rank` dimensions, length one elsewhere."""
    sort = sorted(range(len(axes)), key=axes.__getitem__)
    shape = [1] * rank
    for i in sort:
        shape[axes[i]] = table.shape[i]
    return table.transpose(sort).reshape(shape)


def _read_back(order: Order, best: list[npt.NDArray[np.intp]], nodes: int) -> list[int]:
    choice = [0] * nodes
    for step, pick in zip(reversed(order.steps), reversed(best), strict=True):
        choice[step.node] = int(pick[tuple(choice[other] for other in step.near)])
    return choice
