"""A `Problem` laid out for the kernels: each edge twice, once seen from either end, uses as (node, interval) x
option.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.select.flatten import running
from meshwright.select.problem import Floats, Ints, Problem


class Arrays(NamedTuple):
    """Link l of node i (start[i] <= l < start[i + 1]) leads to near[l]. mats[mat[l] + s * k + t] is the cost of
    option s of i with option t of the other, k its option count; back[l] is the same edge seen from there. Item m
    of node i (item[i] <= m < item[i + 1]) takes bytes[first[m] + s] in rows begin[m] to end[m].
    """

    offsets: Ints
    costs: Floats
    start: Ints
    near: Ints
    back: Ints
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
    start, near, back, mat, mats = _links(problem)
    item, begin, end, first, size = _items(problem)
    costs, mats = (np.where(np.isinf(array), barrier, array) for array in (problem.costs, mats))
    return Arrays(problem.offsets.astype(np.int64), costs, start, near, back, mat, mats,
                  item, begin, end, first, size, problem.limits.astype(np.float64))  # fmt: skip


def _links(problem: Problem) -> tuple[Ints, Ints, Ints, Ints, Floats]:
    edges = problem.edges
    a, b = problem.edge_nodes[:, 0], problem.edge_nodes[:, 1]
    owner = np.concatenate((a, b))
    order = np.argsort(owner, kind="stable")
    place = np.empty(2 * edges, dtype=np.int64)
    place[order] = np.arange(2 * edges)
    twin = np.concatenate((np.arange(edges, 2 * edges), np.arange(edges)))
    total = len(problem.edge_costs)
    mat = np.concatenate((problem.edge_offsets[:-1], problem.edge_offsets[:-1] + total))
    turned = [problem.matrix(edge).T.reshape(-1) for edge in range(edges)]
    mats = np.concatenate((problem.edge_costs, *turned)) if edges else np.zeros(0)
    start = running(np.bincount(owner, minlength=problem.nodes).tolist())
    return start, np.concatenate((b, a))[order], place[twin[order]], mat[order], mats


def _items(problem: Problem) -> tuple[Ints, Ints, Ints, Ints, Floats]:
    """Uses grouped by node and interval."""
    node = problem.use_node
    keys = np.stack((node, problem.use_begin, problem.use_end), axis=1)
    found, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.reshape(-1)
    width = np.diff(problem.offsets)
    first = running(width[found[:, 0]].tolist())
    size = np.zeros(int(first[-1]))
    np.add.at(size, first[which] + problem.use_option - problem.offsets[node], problem.use_bytes)
    item = running(np.bincount(found[:, 0], minlength=problem.nodes).tolist())
    return item, found[:, 1].copy(), found[:, 2].copy(), first[:-1].copy(), size
