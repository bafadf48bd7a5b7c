"""Moves an edge into node costs when E(s, t) = u(s) + v(t) for all pairs: then the two ends do not interact."""

from __future__ import annotations

import numpy as np

from meshwright.select.graph import Graph

# Rounding of sums of non-integers; integers below 2**53 leave no residue at all.
RESIDUE = 1e-13


def apply(graph: Graph, a: int, b: int) -> bool:
    """True when the edge was separable and is gone."""
    matrix = graph.adj[a][b]
    rows, columns = matrix[:, 0], matrix[0]
    if not (np.isfinite(rows).all() and np.isfinite(columns).all()):
        return False
    columns = columns - columns[0]
    residue = matrix - rows[:, None]
    residue -= columns
    largest = max(float(residue.max()), -float(residue.min()))
    if largest != 0.0 and (np.isinf(largest) or largest > RESIDUE * float(np.abs(matrix).max())):
        return False
    graph.cost[a] = graph.cost[a] + rows
    graph.cost[b] = graph.cost[b] + columns
    graph.cut(a, b)
    return True
