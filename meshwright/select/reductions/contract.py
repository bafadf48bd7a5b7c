"""Contracts followers. Node b follows a when every option s of a allows exactly one partner f(s) over their edge.

Then x_b = f(x_a) in every feasible choice, so b merges into a:

    c_a(s) += c_b(f(s)) + E_ab(s, f(s)),      E_ac(s, t) += E_bc(f(s), t),      uses_a += uses_b through f.

When f is one-to-one (a *bijective* edge: one allowed partner per row and per column) the merged node is as small as
each part. Most edges of a sharding problem are of this kind, and contracting them turns tens of thousands of nodes
into hundreds of supernodes. When f is many-to-one, the edges of b grow from |b| to |a| rows; that is only done
where b has few other edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.select.graph import Graph, Use
from meshwright.select.problem import Ints

# A many-to-one follower with more edges than this stays: repeating its rows would cost more than the node does.
FEW_EDGES = 2


@dataclass(frozen=True, slots=True)
class Contract:
    """`node` takes option partner[x] when `into` takes option x."""

    node: int
    into: int
    partner: Ints

    def invert(self, choice: list[int]) -> None:
        choice[self.node] = int(self.partner[choice[self.into]])


def follower(graph: Graph, a: int, b: int) -> int | None:
    """The end of edge (a, b) that follows the other and is worth contracting, if any."""
    finite = np.isfinite(graph.adj[a][b])
    rows, columns = finite.shape
    allowed = int(np.count_nonzero(finite))
    if allowed == rows == columns:
        return min(a, b, key=lambda node: len(graph.adj[node]) + len(graph.use[node]))
    if allowed == rows and len(graph.adj[b]) <= FEW_EDGES:
        return b
    if allowed == columns and len(graph.adj[a]) <= FEW_EDGES:
        return a
    return None


def apply(graph: Graph, a: int, b: int) -> None:
    """Merges the follower b into a."""
    matrix = graph.adj[a][b]
    partner = np.isfinite(matrix).argmax(axis=1)
    graph.trail.append(Contract(b, a, partner))
    graph.cost[a] = graph.cost[a] + graph.cost[b][partner] + matrix[np.arange(len(matrix)), partner]
    for other, edge in graph.adj[b].items():
        if other != a:
            graph.join(a, other, edge[partner])
    graph.use[a] = _together(graph.use[a], graph.use[b].take(partner))
    graph.drop(b)


def _together(one: Use, two: Use) -> Use:
    if not len(two):
        return one
    return Use(
        np.concatenate((one.begin, two.begin)),
        np.concatenate((one.end, two.end)),
        np.concatenate((one.bytes, two.bytes)),
    )
