"""Stand-ins: nodes whose options are classes of another node's.

A table that sees only few classes of a node need not wait for the node: once the node's finer tables are done, a
stand-in with an option per class takes its place in the coarse one. So a value that many ops read is carried by the
classes that the others tell apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.select.elimination.factor import Factor, edge_factor
from meshwright.select.elimination.views import View, Views


@dataclass(slots=True)
class Divided:
    """A problem with stand-ins. alone: the view of every node that is in no factor. stand_ins: of each node."""

    factors: list[Factor]
    alone: list[View]
    stand_ins: dict[int, list[int]] = field(default_factory=dict)


def divided(whole: Divided, kept: Collection[int], views: Views) -> Divided:
    """With a stand-in for every view of a node that is coarser than what its factors see together."""
    found = Divided(list(whole.factors), list(whole.alone))
    for node in range(len(whole.alone)):
        if node not in kept:
            _divide(node, found, views)
    return found


def _divide(node: int, found: Divided, views: Views) -> None:
    seen = {
        at: factor.views[factor.nodes.index(node)] for at, factor in enumerate(found.factors) if node in factor.nodes
    }
    whole = found.alone[node]
    for view in seen.values():
        whole = views.join(whole, view)
    for view in dict.fromkeys(seen.values()):
        if view.size == whole.size:
            continue
        stand_in = len(found.alone)
        found.alone.append(views.by([0] * view.size))
        found.stand_ins.setdefault(node, []).append(stand_in)
        for at, own in seen.items():
            if own is view:
                found.factors[at] = stood_in(found.factors[at], node, stand_in, view, views)
        found.factors.append(link(node, stand_in, view, views))


def stood_in(factor: Factor, node: int, stand_in: int, view: View, views: Views) -> Factor:
    """A factor that sees no more of `node` than `view`, with the stand-in in its place."""
    at = factor.nodes.index(node)
    nodes, sights = list(factor.nodes), list(factor.views)
    nodes[at] = stand_in
    sights[at] = views.by(views.translation(view, factor.views[at]).tolist())
    return replace(factor, nodes=tuple(nodes), views=tuple(sights))


def link(node: int, stand_in: int, view: View, views: Views) -> Factor:
    """Forbids all but the class that an option is in."""
    same = view.index[:, None] == np.arange(view.size)
    return edge_factor((node, stand_in), np.where(same, 0.0, np.inf), views)
