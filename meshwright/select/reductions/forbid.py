"""Removes options that can be in no feasible choice: arc consistency over edges and over rows.

Option s of node i goes when c_i(s) = inf (`by_cost`), when some edge has min_t E_ij(s, t) = inf (`by_edge`), or
when in some row its bytes beyond the node's least exceed what the least possible usage of all other nodes leaves
(`by_rows`).
"""

from __future__ import annotations

import numpy as np

from meshwright.select.graph import Graph
from meshwright.select.problem import ROW_TOLERANCE, InfeasibleError


def by_cost(graph: Graph, node: int) -> bool:
    """True when options of `node` were removed, as in the other two."""
    return apply(graph, node, np.isfinite(graph.cost[node]))


def by_edge(graph: Graph, node: int, other: int) -> bool:
    return apply(graph, node, np.asarray(np.isfinite(graph.adj[node][other]).any(axis=1)))


def by_rows(graph: Graph, node: int) -> bool:
    """Sharp when the bytes are normalised (`rows.normalise`)."""
    use = graph.use[node]
    if not len(use):
        return False
    room = _room(graph.limits, use.begin, use.end)
    return apply(graph, node, (use.bytes <= (room + ROW_TOLERANCE * np.abs(room))[:, None]).all(axis=0))


def apply(graph: Graph, node: int, possible: np.ndarray) -> bool:
    """Keeps only the possible options."""
    if possible.all():
        return False
    if not possible.any():
        raise InfeasibleError(
            f"no option of node {node} can be part of a choice that meets the constraints",
            "an option of finite cost that fits, with an allowed partner over every edge",
            "raise the limit or allow more pairs",
        )
    graph.keep(node, np.flatnonzero(possible))
    return True


def _room(limits: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The least limit of each run of rows."""
    padded = np.append(limits, np.inf)
    pairs = np.stack((begin, end), axis=1).ravel()
    room: np.ndarray = np.minimum.reduceat(padded, pairs)[::2]
    return room
