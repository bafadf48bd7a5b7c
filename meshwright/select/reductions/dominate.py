"""Removes dominated options. Option s of node i is dominated by t when, whatever the neighbours choose, t costs no
more:

    c_i(t) - c_i(s)  +  sum over edges ij of  max_q [ E_ij(t, q) - E_ij(s, q) ]  <=  0,

and t uses no more bytes than s in any row. Of options that dominate each other the first stays.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.graph import Graph
from meshwright.select.problem import Floats

# The comparison costs options^2 * (neighbours' options); beyond this many numbers only the cheap case is looked at.
LARGEST = 4_000_000


def apply(graph: Graph, node: int) -> bool:
    """True when options of `node` were removed."""
    cost = graph.cost[node]
    if len(cost) < 2 or len(cost) ** 2 * max((m.shape[1] for m in graph.adj[node].values()), default=1) > LARGEST:
        return False
    worse = _no_more_bytes(graph, node)
    np.fill_diagonal(worse, False)
    if not worse.any():
        return False
    with np.errstate(invalid="ignore"):
        extra = cost[:, None] - cost
        for matrix in graph.adj[node].values():
            extra += _largest_rise(matrix)
    worse &= extra <= 0
    index = np.arange(len(cost))
    worse &= ~(worse.T & (index[:, None] > index))
    kept = np.flatnonzero(~worse.any(axis=0))
    if len(kept) == len(cost):
        return False
    graph.keep(node, kept)
    return True


def _no_more_bytes(graph: Graph, node: int) -> np.ndarray:
    """[t, s]: option t uses at most the bytes of option s in every interval."""
    size = graph.use[node].bytes
    below = np.ones((size.shape[1],) * 2, dtype=bool)
    if len(size):
        size = np.unique(size, axis=0) if len(size) > 64 else size
        for start in range(0, len(size), 256):
            part = size[start : start + 256]
            below &= (part[:, :, None] <= part[:, None, :]).all(axis=0)
    return below


def _largest_rise(matrix: Floats) -> Floats:
    """[t, s]: max over q of E(t, q) - E(s, q), pairs forbidden to both aside (inf - inf is nan, which fmax ignores)."""
    rise: Floats = np.fmax.reduce(matrix[:, None, :] - matrix[None, :, :], axis=2)
    return rise
