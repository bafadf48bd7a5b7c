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

from meshwright.select.problem import Floats, Problem


@dataclass(frozen=True, slots=True)
class Elimination:
    """One step: `node` goes, `near` are the other nodes of its table. Axis 0 of the table is `node`, the others
    `near`.
    """

    node: int
    near: tuple[int, ...]
    matrices: tuple[Floats, ...]  # edges, shaped to broadcast over the table
    messages: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]  # earlier step, its axes in order, shape


@dataclass(frozen=True, slots=True)
class Order:
    """An elimination order and the number of table entries it takes."""

    steps: tuple[Elimination, ...]
    entries: int
    offsets: tuple[int, ...]


def plan(problem: Problem, most: float = float("inf")) -> Order | None:
    """Eliminates the node with the smallest table first (a greedy tree decomposition). None when that takes more than
    `most` table entries in all.
    """
    offsets = problem.offsets.tolist()
    width = np.diff(problem.offsets).tolist()
    near: list[set[int]] = [set() for _ in width]
    for a, b in problem.edge_nodes.tolist():
        near[a].add(b)
        near[b].add(a)
    size = [width[v] * prod(width[a] for a in near[v]) for v in range(len(width))]
    heap = [(entries, v) for v, entries in enumerate(size)]
    heapq.heapify(heap)
    sequence: list[tuple[int, tuple[int, ...]]] = []
    total = 0
    while heap:
        entries, v = heapq.heappop(heap)
        if entries != size[v]:
            continue  # out of date, or gone
        size[v] = -1
        total += entries
        if total > most:
            return None
        rest = near[v]
        sequence.append((v, tuple(sorted(rest))))
        for a in rest:
            others = near[a]
            others |= rest
            others.discard(v)
            others.discard(a)
            size[a] = width[a] * prod([width[b] for b in others])
            heapq.heappush(heap, (size[a], a))
    return Order(_steps(problem, sequence, width), total, tuple(offsets))


def _steps(problem: Problem, sequence: list[tuple[int, tuple[int, ...]]], width: list[int]) -> tuple[Elimination, ...]:
    """Gives each edge to the first of its ends to go, each step's result to the first of its nodes to go."""
    turn = {v: step for step, (v, _) in enumerate(sequence)}
    matrices: list[list[Floats]] = [[] for _ in sequence]
    messages: list[list[tuple[int, tuple[int, ...], tuple[int, ...]]]] = [[] for _ in sequence]
    axes = [{node: axis for axis, node in enumerate((v, *near))} for v, near in sequence]
    for edge, (a, b) in enumerate(problem.edge_nodes.tolist()):
        step = min(turn[a], turn[b])
        perm, shape = _placement((a, b), axes[step], width)
        matrices[step].append(problem.matrix(edge).transpose(perm).reshape(shape))
    for index, (_, near) in enumerate(sequence):
        if near:
            step = min(turn[node] for node in near)
            messages[step].append((index, *_placement(near, axes[step], width)))
    parts = zip(sequence, matrices, messages, strict=True)
    return tuple(Elimination(v, near, tuple(own), tuple(got)) for (v, near), own, got in parts)


def _placement(
    nodes: tuple[int, ...], axis: dict[int, int], width: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How a table over `nodes` is transposed and reshaped to broadcast over one with the axes `axis`."""
    perm = sorted(range(len(nodes)), key=lambda i: axis[nodes[i]])
    shape = [1] * len(axis)
    for node in nodes:
        shape[axis[node]] = width[node]
    return tuple(perm), tuple(shape)


def run(problem: Problem, order: Order, costs: Floats) -> tuple[float, list[int]]:
    """The least total for the option costs `costs` and a choice that attains it."""
    found: list[Floats] = []
    total = 0.0
    for step in order.steps:
        table = costs[order.offsets[step.node] : order.offsets[step.node + 1]].reshape(-1, *(1,) * len(step.near))
        for matrix in step.matrices:
            table = table + matrix
        for index, perm, shape in step.messages:
            table = table + found[index].transpose(perm).reshape(shape)
        found.append(table.min(axis=0))
        if not step.near:
            total += float(found[-1])
    return total, _read_back(order, costs, found)


def _read_back(order: Order, costs: Floats, found: list[Floats]) -> list[int]:
    """The options that attain the minima, last step first. Working out the one column of a step's table that matters is
    cheaper than having kept where every minimum was.
    """
    choice = [0] * len(order.steps)
    for step in reversed(order.steps):
        column = costs[order.offsets[step.node] : order.offsets[step.node + 1]]
        at = [choice[other] for other in step.near]
        for matrix in step.matrices:
            column = column + _column(matrix, at)
        for index, perm, shape in step.messages:
            column = column + _column(found[index].transpose(perm).reshape(shape), at)
        choice[step.node] = int(column.argmin())
    return choice


def _column(table: Floats, at: list[int]) -> Floats:
    sizes = table.shape[1:]
    index: tuple[slice | int, ...] = (slice(None), *[i if size > 1 else 0 for i, size in zip(at, sizes, strict=True)])
    column: Floats = table[index]
    return column
