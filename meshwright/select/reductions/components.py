"""Solves connected components that use no bytes on their own: nothing ties them to the rest.

Each is minimised by elimination, if it is narrow enough, and leaves only its cost. Components that use bytes share
rows with others and stay; the solvers behind take them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.select import elimination
from meshwright.select.flatten import flatten
from meshwright.select.graph import Graph
from meshwright.select.problem import no_choice

# Table entries a component may take; a wider one stays for the solvers behind.
ENTRIES = 5_000_000


@dataclass(frozen=True, slots=True)
class Solved:
    """The nodes of a component and their options in its optimum."""

    nodes: tuple[int, ...]
    options: tuple[int, ...]

    def invert(self, choice: list[int]) -> None:
        for node, option in zip(self.nodes, self.options, strict=True):
            choice[node] = option


def apply(graph: Graph) -> int:
    """Removes every narrow component without uses; returns how many nodes went."""
    gone = 0
    for nodes in connected(graph.adj):
        if any(len(graph.use[node]) for node in nodes):
            continue
        problem, ids = flatten(graph, sorted(nodes))
        try:
            filled = elimination.plan(problem, most=ENTRIES).run(problem.costs)
        except elimination.TooWideError:
            continue
        if np.isinf(filled.value):
            raise no_choice("elimination")
        graph.constant += filled.value
        graph.trail.append(Solved(tuple(ids), tuple(filled.choice())))
        for node in ids:
            graph.drop(node)
        gone += len(ids)
    return gone


def connected(near: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """The nodes of each connected component. near: of every node its neighbours."""
    seen: set[int] = set()
    found = []
    for root in near:
        if root in seen:
            continue
        seen.add(root)
        part, front = [root], [root]
        while front:
            for other in near[front.pop()]:
                if other not in seen:
                    seen.add(other)
                    part.append(other)
                    front.append(other)
        found.append(part)
    return found
