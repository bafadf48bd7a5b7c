"""Which combinations of classes can be finite: the natural join of the cells of several factors."""

from __future__ import annotations

from math import prod

import numpy as np

from meshwright.select.elimination.factor import Factor
from meshwright.select.elimination.views import View, Views
from meshwright.select.problem import Ints

Columns = dict[int, Ints]


class TooManyError(Exception):
    """More combinations than asked for."""


def join(node: int, axes: dict[int, View], factors: tuple[Factor, ...], views: Views, most: float) -> Columns:
    """Per node that some factor constrains (and `node` itself) its classes in `axes`, one entry per combination that
    all factors allow. Raises `TooManyError` when there are more than `most`.
    """
    found: Columns = {node: np.arange(axes[node].size)}
    waiting = [factor for factor in factors if factor.split]
    while waiting:
        factor = min(waiting, key=lambda one: _growth(one, found))
        waiting.remove(factor)
        found = _join_one(found, factor, axes, views, most)
    return found


def _growth(factor: Factor, found: Columns) -> float:
    """How many combinations a factor makes of one, about."""
    return len(factor.cells) / prod(view.size for node, view in _constrained(factor) if node in found)


def _constrained(factor: Factor) -> list[tuple[int, View]]:
    return list(zip(factor.nodes, factor.views, strict=True))[: factor.split]


def _join_one(found: Columns, factor: Factor, axes: dict[int, View], views: Views, most: float) -> Columns:
    pairs = _constrained(factor)
    theirs = np.unravel_index(factor.cells, [view.size for _, view in pairs])
    ours = np.zeros(len(next(iter(found.values()))), dtype=np.int64)
    keys = np.zeros(len(factor.cells), dtype=np.int64)
    for (node, view), column in zip(pairs, theirs, strict=True):
        if node in found:
            ours = ours * view.size + views.translation(axes[node], view)[found[node]]
            keys = keys * view.size + column
    row, cell = _matches(ours, keys, most)
    grown = {node: column[row] for node, column in found.items()}
    for (node, view), column in zip(pairs, theirs, strict=True):
        if node not in found:
            # A class of the factor may be several of the finer ones asked for.
            row, fine = _matches(column[cell], views.translation(axes[node], view), most)
            grown = {other: known[row] for other, known in grown.items()}
            cell = cell[row]
            grown[node] = fine
    return grown


def _matches(left: Ints, right: Ints, most: float) -> tuple[Ints, Ints]:
    """All pairs of places with equal keys, those of `left` in order."""
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    begin, end = np.searchsorted(ordered, left), np.searchsorted(ordered, left, side="right")
    count = end - begin
    total = int(count.sum())
    if total > most:
        raise TooManyError
    row = np.repeat(np.arange(len(left)), count)
    within = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    return row, order[np.repeat(begin, count) + within]
