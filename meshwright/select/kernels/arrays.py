"""A `Problem` laid out for the kernels: each edge twice, once seen from either end, over classes of options that it
cannot tell apart (`reductions.compact`); uses as (node, interval) x option.

Options on three mesh axes are many, the layouts that an edge sees are few, and a message costs as much as there are
pairs of classes. Edges with equal matrices share one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from meshwright.select.graph import items_of
from meshwright.select.problem import Floats, Ints, Problem, join, running
from meshwright.select.reductions import compact


class Arrays(NamedTuple):
    """Link l of node i (start[i] <= l < start[i + 1]) leads to near[l]; back[l] is the same edge seen from there.
    classes[seen[l] + s] is the class of option s of i, one of kinds[l]. mats[mat[l] + p * kinds[back[l]] + q] is the
    cost of class p with class q of the other. Item m of node i (item[i] <= m < item[i + 1]) takes bytes[first[m] + s]
    in rows begin[m] to end[m].
    """

    offsets: Ints
    costs: Floats
    start: Ints
    near: Ints
    back: Ints
    seen: Ints
    kinds: Ints
    classes: Ints
    mat: Ints
    mats: Floats
    item: Ints
    begin: Ints
    end: Ints
    first: Ints
    bytes: Floats
    limits: Floats


def lay_out(problem: Problem) -> Arrays:
    """Forbidden pairs get a cost far above any other, so that sums and differences stay numbers; a bound for these
    costs holds for the infinite ones.
    """
    finite = np.concatenate((problem.costs, problem.edge_costs))
    barrier = 1.0 + 100.0 * float(np.abs(finite[np.isfinite(finite)]).max(initial=0.0))
    start, near, back, order = _links(problem)
    sides = _sides(problem)
    items = items_of(problem)
    costs, mats = (np.where(np.isinf(array), barrier, array) for array in (problem.costs, sides.mats))
    return Arrays(problem.offsets.astype(np.int64), costs, start, near, back, sides.seen[order], sides.kinds[order],
                  sides.classes, sides.mat[order], mats, *items, problem.limits.astype(np.float64))  # fmt: skip


def _links(problem: Problem) -> tuple[Ints, Ints, Ints, Ints]:
    """Of the first ends of all edges, then the second ones, `order` has those of each node together."""
    edges = problem.edges
    a, b = problem.edge_nodes[:, 0], problem.edge_nodes[:, 1]
    owner = np.concatenate((a, b))
    order = np.argsort(owner, kind="stable")
    place = np.empty(2 * edges, dtype=np.int64)
    place[order] = np.arange(2 * edges)
    twin = np.concatenate((np.arange(edges, 2 * edges), np.arange(edges)))
    start = running(np.bincount(owner, minlength=problem.nodes).tolist())
    return start, np.concatenate((b, a))[order], place[twin[order]], order


class _Sides(NamedTuple):
    """The first ends of all edges, then the second ones; fields as in `Arrays`."""

    seen: Ints
    kinds: Ints
    classes: Ints
    mat: Ints
    mats: Floats


def _sides(problem: Problem) -> _Sides:
    number: dict[tuple[bytes, tuple[int, ...]], int] = {}
    found: list[compact.Compact] = []
    which = np.zeros(problem.edges, dtype=np.int64)
    for edge in range(problem.edges):
        matrix = problem.matrix(edge)
        key = blake2b(matrix.tobytes(), digest_size=16).digest(), matrix.shape
        if key not in number:
            number[key] = len(found)
            found.append(compact.apply(matrix))
        which[edge] = number[key]
    classes = [part for each in found for part in (each.rows, each.columns)]
    shapes = np.array([each.matrix.shape for each in found], dtype=np.int64).reshape(-1, 2)
    begins = running([len(part) for part in classes])[:-1].reshape(-1, 2)
    places = running([each.matrix.size for each in found for _ in range(2)])[:-1].reshape(-1, 2)
    mats = [part.reshape(-1) for each in found for part in (each.matrix, each.matrix.T)]
    seen, kinds, mat = (table[which].T.reshape(-1) for table in (begins, shapes, places))
    return _Sides(seen, kinds, np.concatenate(classes) if classes else seen, mat, join(mats))
