"""One elimination for several vectors of node costs.

A step is done once for all vectors that make it the same: those with equal costs of its node, and of all nodes that
went into it before. Small tables are filled for many vectors at once, so that numpy is called as often as for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.select.elimination.dense import WHOLE, DenseStep, Part, sum_of
from meshwright.select.elimination.order import Order, Step
from meshwright.select.problem import Floats, Ints

_NOTHING: Floats = np.empty((1, 0))


@dataclass(frozen=True, slots=True)
class _Left:
    """What a step leaves. tables: the different ones. which: of these, by vector."""

    tables: Floats
    which: Ints


def least_of_each(order: Order, costs: Floats) -> Floats:
    """The least total for each row of option costs. order: of all nodes."""
    if not order.possible:
        return np.full(len(costs), np.inf)
    costs = np.concatenate([costs, np.zeros((len(costs), order.offsets[-1] - costs.shape[1]))], axis=1)
    least: Floats = np.zeros(len(costs)) + sum(float(table) for table in order.constants)
    if order.members is None or order.starts is None:
        return least
    classes = np.minimum.reduceat(costs[:, order.members], order.starts, axis=1)
    alone: list[Floats] = []  # of steps that are the same for all: what they leave
    found: list[_Left] = []
    begin = 0
    for number, step in enumerate(order.steps):
        own = classes[:, begin : begin + step.view.size]
        begin += step.view.size
        if len(alone) == number and number in order.known and (own == own[0]).all():
            alone.append(order.left(number, own[0], alone))
            found.append(_Left(alone[-1][None], np.zeros(len(costs), dtype=np.int64)))
        else:
            found.append(_left(step, own, found))
    for part in order.parts:
        left = found[part.factor.step]
        least += left.tables[left.which, 0]
    return least


def _left(step: Step, costs: Floats, found: Sequence[_Left]) -> _Left:
    before = [factor.step for factor in step.factors if factor.values is None]
    same: dict[tuple[object, ...], int] = {}
    keys = zip(map(bytes, np.ascontiguousarray(costs)), *(found[one].which.tolist() for one in before), strict=True)
    which = np.array([same.setdefault(key, len(same)) for key in keys])
    first = np.unique(which, return_index=True)[1]
    tables = np.empty((len(first), step.left.stored))
    together = max(1, WHOLE // step.entries) if isinstance(step, DenseStep) else 1
    for begin in range(0, len(first), together):
        rows = first[begin : begin + together]
        own = [left.tables[left.which[rows]] if one in before else _NOTHING for one, left in enumerate(found)]
        if isinstance(step, DenseStep) and together > 1:
            _fill_each(step, tables[begin : begin + together], costs[rows], own)
        else:
            step.fill(tables[begin], costs[rows[0]], [left[0] for left in own])
    return _Left(tables, which)


def _fill_each(step: DenseStep, out: Floats, costs: Floats, found: Sequence[Floats]) -> None:
    """As `DenseStep.fill`, of a table that is summed in one piece, by row."""
    axes = (1,) * (len(step.shape) - 1)
    parts = [costs.reshape(*costs.shape, *axes), *(table[None] for table in step.constants)]
    parts += [_laid_out(part, found[part.factor.step]) for part in step.parts]
    least = sum_of(parts).min(axis=1).reshape(len(out), -1)
    out[...] = least[:, step.left.cells] if step.left.split else least


def _laid_out(part: Part, values: Floats) -> Floats:
    """As `Part.laid_out`, by row."""
    factor, rows = part.factor, len(values)
    table = values
    if factor.split:
        table = np.full((rows, prod(factor.sizes[: factor.split]), factor.block), np.inf)
        table[:, factor.cells] = values.reshape(rows, -1, factor.block)
    table = table.reshape(rows, *factor.sizes)
    for axis, index in part.finer:
        table = table.take(index, 1 + axis)
    shape = [1] * part.rank
    for place, size in zip(part.place, table.shape[1:], strict=True):
        shape[place] = size
    axes = sorted(range(len(part.place)), key=part.place.__getitem__)
    return table.transpose(0, *(1 + axis for axis in axes)).reshape(rows, *shape)
