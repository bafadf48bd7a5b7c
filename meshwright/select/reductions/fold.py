"""Folds a node with a single option: its cost is constant, its edges are costs of neighbours, its bytes off the
limits.
"""

from __future__ import annotations

from meshwright.select.graph import Graph
from meshwright.select.reductions.rows import normalise


def apply(graph: Graph, node: int) -> list[int]:
    """Removes `node`, which must have one option (its choice is 0); returns the neighbours whose costs changed."""
    near = list(graph.adj[node])
    graph.constant += float(graph.cost[node][0])
    for other in near:
        graph.cost[other] = graph.cost[other] + graph.adj[other][node][:, 0]
    normalise(graph, node)
    graph.drop(node)
    return near
