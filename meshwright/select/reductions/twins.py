"""Merges twins: options of a node that no edge and no row can tell apart. Of each group the cheapest stays.

Unlike the other reductions this one works on the flat arrays and in one go, before a graph is built: two options
are twins when their fingerprints agree, sums of their edge costs, forbidden pairs and bytes with random weights,
one per place. Equal rows have equal sums to the last bit; that unequal ones do has the probability of a collision
of 100-bit hashes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.select.problem import Floats, Ints, Problem, running


@dataclass(frozen=True, slots=True)
class Twins:
    """Option o of node i of the smaller problem is option kept[offsets[i] + o] of the larger."""

    offsets: Ints
    kept: Ints

    def invert(self, choice: list[int]) -> list[int]:
        found: list[int] = self.kept[self.offsets[:-1] + np.asarray(choice, dtype=np.int64)].tolist()
        return found


def apply(problem: Problem) -> tuple[Problem, Twins]:
    """The problem without all twins but one, and the way back."""
    width = np.diff(problem.offsets)
    owner = np.repeat(np.arange(problem.nodes), width)
    row, column = _ends(problem, width)
    prints = _fingerprints(problem, row, column)
    order = np.lexsort((problem.costs, *prints, owner))
    same = np.ones(len(order), dtype=bool)
    for values in (owner, *prints):
        same[1:] &= values[order[1:]] == values[order[:-1]]
    same[:1] = False
    keep = np.zeros(len(order), dtype=bool)
    keep[order[~same]] = True
    local = np.arange(len(order)) - problem.offsets[owner]
    smaller = problem if keep.all() else _restrict(problem, keep, owner, row, column)
    return smaller, Twins(smaller.offsets, local[keep])


def _ends(problem: Problem, width: Ints) -> tuple[Ints, Ints]:
    """The option entries of the two ends of every entry of `edge_costs`."""
    a, b = problem.edge_nodes[:, 0], problem.edge_nodes[:, 1]
    size = np.diff(problem.edge_offsets)
    place = np.arange(len(problem.edge_costs)) - np.repeat(problem.edge_offsets[:-1], size)
    row, column = np.divmod(place, np.repeat(width[b], size)) if len(place) else (place, place)
    return row + np.repeat(problem.offsets[a], size), column + np.repeat(problem.offsets[b], size)


def _fingerprints(problem: Problem, row: Ints, column: Ints) -> list[Floats]:
    rng = np.random.default_rng(0)
    options = len(problem.costs)
    size = np.diff(problem.edge_offsets)
    edge = np.repeat(np.arange(problem.edges), size)
    finite = np.isfinite(problem.edge_costs)
    value = np.where(finite, problem.edge_costs, 0.0)
    width = np.diff(problem.offsets)
    to_column = _weights(
        rng, column - problem.offsets[problem.edge_nodes[edge, 1]], width[problem.edge_nodes[:, 1]], edge
    )
    to_row = _weights(rng, row - problem.offsets[problem.edge_nodes[edge, 0]], width[problem.edge_nodes[:, 0]], edge)
    prints: list[Floats] = []
    for part in (value, (~finite).astype(np.float64)):
        prints.append(_sums(row, part * to_column, options) + _sums(column, part * to_row, options))
    place = np.sin(1e4 * (rng.random() + problem.use_begin * np.sqrt(2.0) + problem.use_end * np.sqrt(3.0)))
    prints.append(_sums(problem.use_option, problem.use_bytes * place, options))
    return prints


def _sums(index: Ints, value: Floats, size: int) -> Floats:
    return np.bincount(index, value, size).astype(np.float64)


def _weights(rng: np.random.Generator, local: Ints, width: Ints, edge: Ints) -> Floats:
    """A random weight for every (edge, option of one of its ends), spread over the entries of the matrices."""
    slot = np.concatenate(([0], np.cumsum(width)))
    return rng.random(int(slot[-1]))[slot[edge] + local]


def _restrict(problem: Problem, keep: np.ndarray, owner: Ints, row: Ints, column: Ints) -> Problem:
    entry = np.cumsum(keep) - 1
    pairs = keep[row] & keep[column]
    edge = np.repeat(np.arange(problem.edges), np.diff(problem.edge_offsets))
    uses = keep[problem.use_option]
    return replace(
        problem,
        offsets=running(np.bincount(owner[keep], minlength=problem.nodes)),
        costs=problem.costs[keep],
        edge_offsets=running(np.bincount(edge[pairs], minlength=problem.edges)),
        edge_costs=problem.edge_costs[pairs],
        use_option=entry[problem.use_option[uses]],
        use_begin=problem.use_begin[uses],
        use_end=problem.use_end[uses],
        use_bytes=problem.use_bytes[uses],
    )
