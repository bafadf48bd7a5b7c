"""Eliminates a node of degree 0, 1 or 2 that uses no bytes, by a min-plus product.

    degree 0:   constant += min_s c(s)
    degree 1:   c_a(t)    += min_s [ c(s) + E_a(s, t) ]
    degree 2:   E_ab(t, u) += min_s [ c(s) + E_a(s, t) + E_b(s, u) ]

The minimising s is kept per (t, u) so that the choice can be read back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.select.graph import Graph

# Entries of the table of a degree-2 elimination; a larger one would cost more than the node.
LARGEST = 200_000


@dataclass(frozen=True, slots=True)
class Eliminate:
    """`node` takes the option in `best` at its former neighbours' choices."""

    node: int
    near: tuple[int, ...]
    best: npt.NDArray[np.int64]

    def invert(self, choice: list[int]) -> None:
        choice[self.node] = int(self.best[tuple(choice[other] for other in self.near)])


def apply(graph: Graph, node: int) -> list[int] | None:
    """Removes `node` if it can be eliminated and returns its neighbours; None when it stays."""
    near = list(graph.adj[node])
    if len(near) > 2 or len(graph.use[node]):
        return None
    table = graph.cost[node]
    if len(near) == 2:
        widths = [len(graph.cost[other]) for other in near]
        if table.size * widths[0] * widths[1] > LARGEST:
            return None
    for axis, other in enumerate(near):
        matrix = graph.adj[node][other]
        table = table[..., None] + matrix.reshape(len(matrix), *(1,) * axis, -1)
    best = table.argmin(axis=0)
    least = np.take_along_axis(table, best[None], axis=0)[0]
    graph.trail.append(Eliminate(node, tuple(near), best))
    graph.drop(node)
    if not near:
        graph.constant += float(least)
    elif len(near) == 1:
        graph.cost[near[0]] = graph.cost[near[0]] + least
    else:
        graph.join(near[0], near[1], least)
    return near
