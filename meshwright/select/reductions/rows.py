"""Makes rows few and sharp. Three rules, none of which changes the set of feasible choices:

normalise   the least bytes over a node's options are always there: they come off the limits, and the rest is
            what a choice decides
maximal     rows between two neighbouring changes only gain uses or only lose them, so a row next to one that has
            all its uses and a limit no higher is implied by it (only maximal live sets are left)
prune       a row whose uses together cannot exceed its limit does not bind
"""

from __future__ import annotations

import numpy as np

from meshwright.select.graph import Graph, Use
from meshwright.select.problem import ROW_TOLERANCE, Floats, InfeasibleError, Ints


def normalise(graph: Graph, node: int) -> None:
    """Takes the least bytes of every interval of `node` off the limits; drops intervals left without bytes."""
    use = graph.use[node]
    if not len(use):
        return
    least = use.bytes.min(axis=1)
    for item in np.flatnonzero(least).tolist():
        graph.limits[use.begin[item] : use.end[item]] -= least[item]
    rest = use.bytes - least[:, None]
    some = (rest > 0).any(axis=1)
    graph.use[node] = Use(use.begin[some], use.end[some], rest[some])


def apply(graph: Graph) -> list[int]:
    """Normalises every node, then keeps only the rows that can bind; returns the nodes whose uses changed."""
    for node in graph.cost:
        normalise(graph, node)
    _refuse_overfull(graph)
    owner, begin, end, most = _flat(graph)
    peak = np.zeros(len(graph.limits) + 1)
    np.add.at(peak, begin, most)
    np.subtract.at(peak, end, most)
    # The sum of ends can leave rounding in `peak`; the margin keeps a row that might bind.
    binding = np.cumsum(peak)[:-1] > graph.limits * (1 - 1e-9)
    kept = np.flatnonzero(binding & _maximal(begin, end, graph.limits))
    if len(kept) == len(graph.limits):
        return []
    return _restrict(graph, kept, np.unique(owner).tolist())


def _refuse_overfull(graph: Graph) -> None:
    given = graph.given[graph.rows]
    for left in np.flatnonzero(graph.limits < -ROW_TOLERANCE * np.abs(given))[:1]:
        row, limit = graph.rows[left], given[left]
        need = limit - graph.limits[left]
        raise InfeasibleError(
            f"row {row} needs at least {need:.6g} bytes whatever is chosen, its limit is {limit:.6g}",
            f"a limit of {need:.6g} or more",
            "raise the limit or offer options that use less",
        )


def _flat(graph: Graph) -> tuple[Ints, Ints, Ints, Floats]:
    """Owner, begin, end and largest bytes of every interval of every node."""
    uses = [(node, use) for node, use in graph.use.items() if len(use)]
    if not uses:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing, np.zeros(0)
    owner = np.repeat([node for node, _ in uses], [len(use) for _, use in uses])
    begin = np.concatenate([use.begin for _, use in uses])
    end = np.concatenate([use.end for _, use in uses])
    return owner, begin, end, np.concatenate([use.bytes.max(axis=1) for _, use in uses])


def _maximal(begin: Ints, end: Ints, limits: Floats) -> np.ndarray:
    """Rows not implied by a neighbour. Ties are broken so that of two rows that imply each other the later one
    stays.
    """
    rows = len(limits)
    kept = np.ones(rows, dtype=bool)
    begins = np.bincount(begin, minlength=rows + 1)[:rows] > 0
    ends = np.bincount(end, minlength=rows + 1)[:rows] > 0
    for row in range(rows - 1):  # row is contained in row + 1: nothing ends between them
        if not ends[row + 1] and limits[row] >= limits[row + 1]:
            kept[row] = False
    for row in range(rows - 1, 0, -1):  # row is contained in row - 1: nothing begins between them
        if not begins[row] and limits[row] >= limits[row - 1] and kept[row - 1]:
            kept[row] = False
    return kept


def _restrict(graph: Graph, kept: Ints, owners: list[int]) -> list[int]:
    """Renumbers rows to `kept`; uses that touch none of them vanish."""
    graph.limits, graph.rows = graph.limits[kept], graph.rows[kept]
    changed = []
    for node in owners:
        use = graph.use[node]
        begin, end = np.searchsorted(kept, use.begin), np.searchsorted(kept, use.end)
        alive = end > begin
        if not alive.all():
            changed.append(node)
        graph.use[node] = gather(begin[alive], end[alive], use.bytes[alive])
    return changed


def gather(begin: Ints, end: Ints, size: Floats) -> Use:
    """Adds up the bytes of equal intervals."""
    if len(begin) < 2:
        return Use(begin, end, size)
    order = np.lexsort((end, begin))
    begin, end, size = begin[order], end[order], size[order]
    new = np.flatnonzero(np.concatenate(([True], (np.diff(begin) != 0) | (np.diff(end) != 0))))
    return Use(begin[new], end[new], np.add.reduceat(size, new, axis=0))
