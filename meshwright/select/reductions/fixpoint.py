"""Runs the reductions to a fixpoint. Two work lists, so that a supernode with thousands of edges is not looked at
again for each of them:

edges whose matrix changed: missing partners, separable, followers; until none is left; then
nodes whose costs, edges or uses changed: single option, dominated options, elimination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from meshwright.select.graph import Graph
from meshwright.select.problem import Problem
from meshwright.select.reductions import components, contract, dominate, eliminate, fold, forbid, rows, separate

# A pass over the rows touches every node; after a few of them what is left to gain is small.
ROW_PASSES = 6
TURNS = 100  # after so many the clock is asked


def reduce(problem: Problem, stop: Callable[[], bool] = lambda: False) -> Graph:
    """The graph of `problem` after all reductions, or those done until `stop` said so.

    Raises `InfeasibleError` when they show that no choice exists.
    """
    graph = Graph(problem)
    work = _Work(graph, stop)
    rows.apply(graph)
    for node in graph.nodes():
        work.changed(node)
    for _ in range(ROW_PASSES):
        work.run()
        if stop():
            return graph
        changed = rows.apply(graph)
        if not changed:
            break
        for node in changed:
            work.nodes[node] = None
    components.apply(graph)
    return graph


class _Work:
    """Dictionaries serve as ordered sets: the order of work, and so the result, is the same in every run."""

    def __init__(self, graph: Graph, stop: Callable[[], bool]) -> None:
        self.graph, self.stop = graph, stop
        self.edges: dict[tuple[int, int], None] = {}
        self.nodes: dict[int, None] = {}

    def run(self) -> None:
        for turn in count():
            if not (self.edges or self.nodes) or (turn % TURNS == 0 and self.stop()):
                return
            if self.edges:
                (a, b), _ = self.edges.popitem()
                if b in self.graph.adj.get(a, ()):
                    self._edge(a, b)
            else:
                node, _ = self.nodes.popitem()
                if node in self.graph.cost:
                    self._node(node)

    def changed(self, node: int) -> None:
        """The options or costs of `node` changed: its edges too."""
        self.nodes[node] = None
        if forbid.by_cost(self.graph, node) | forbid.by_rows(self.graph, node):
            rows.normalise(self.graph, node)
        if len(self.graph.cost[node]) == 1:
            self._fold(node)
        else:
            self._touch(node, self.graph.adj[node])

    def _touch(self, node: int, others: Iterable[int]) -> None:
        for other in others:
            self.edges[min(node, other), max(node, other)] = None
            self.nodes[other] = None

    def _fold(self, node: int) -> None:
        for other in fold.apply(self.graph, node):
            self.nodes[other] = None

    def _edge(self, a: int, b: int) -> None:
        graph = self.graph
        for node, other in ((a, b), (b, a)):
            if forbid.by_edge(graph, node, other):
                rows.normalise(graph, node)
                self.changed(node)
                return
        if separate.apply(graph, a, b):
            self.nodes.update({a: None, b: None})
            return
        follower = contract.follower(graph, a, b)
        if follower is not None:
            into = a + b - follower
            near = [other for other in graph.adj[follower] if other != into]
            contract.apply(graph, into, follower)
            self.nodes[into] = None
            self._touch(into, near)

    def _node(self, node: int) -> None:
        graph = self.graph
        if forbid.by_cost(graph, node) or forbid.by_rows(graph, node) or dominate.apply(graph, node):
            rows.normalise(graph, node)
            self.changed(node)
        elif len(graph.cost[node]) == 1:
            self._fold(node)
        else:
            near = eliminate.apply(graph, node) or ()
            for other in near:
                self.nodes[other] = None
            if len(near) == 2:
                self._touch(near[0], near[1:])
