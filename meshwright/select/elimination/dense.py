"""An elimination step over a full table: an axis for the eliminated node, one for each neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.select.elimination.factor import ONE_CELL, Bools, Factor, ImpossibleError
from meshwright.select.elimination.views import View, Views
from meshwright.select.problem import Floats, Ints

# Entries up to which a table is summed in one piece; larger ones are minimised class by class, in the cache.
WHOLE = 50_000


@dataclass(frozen=True, slots=True)
class Part:
    """How a factor is laid out to broadcast over a table of `rank` axes: repeated where the table's classes are finer,
    axis i at `place[i]`.
    """

    factor: Factor
    finer: tuple[tuple[int, Ints], ...]  # axis, and the factor's class of each class of the table
    place: tuple[int, ...]
    rank: int

    def laid_out(self, values: Floats, *, but_first: bool = False) -> Floats:
        """`but_first`: the table's first axis as the factor has it."""
        table = self.factor.unfolded(values)
        for axis, index in self.finer:
            table = table if but_first and self.place[axis] == 0 else table.take(index, axis)
        order, shape = self._form(table.shape)
        return table.transpose(order).reshape(shape)

    def first(self) -> Ints | None:
        """The factor's class of each class of the table's first axis, if they differ."""
        return next((index for axis, index in self.finer if self.place[axis] == 0), None)

    def finite(self) -> Bools:
        """Which entries can be finite; of length 1 along axes that do not matter for that."""
        table = self.factor.allowed()
        for axis, index in self.finer:
            table = table.take(index, axis) if axis < self.factor.split else table
        order, shape = self._form(table.shape)
        return table.transpose(order).reshape(shape)

    def _form(self, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
        """The order of the axes and the shape in the table."""
        shape = [1] * self.rank
        for place, size in zip(self.place, sizes, strict=True):
            shape[place] = size
        return sorted(range(len(self.place)), key=self.place.__getitem__), shape


@dataclass(frozen=True, slots=True)
class DenseStep:
    """`node` goes; `view` are its classes, `factors` its tables, `left` what takes their place."""

    node: int
    view: View
    factors: tuple[Factor, ...]
    left: Factor
    shape: tuple[int, ...]
    constants: tuple[Floats, ...]
    parts: tuple[Part, ...]

    @property
    def entries(self) -> int:
        return prod(self.shape)

    def least(self, costs: Floats, found: Sequence[Floats]) -> Floats:
        """The values of `left`, for the costs of the node's classes and the values of earlier steps."""
        fixed = [costs.reshape(-1, *(1,) * (len(self.shape) - 1)), *self.constants]
        least = self._whole(fixed, found) if self._is_small else self._by_class(fixed, found)
        return least.reshape(-1)[self.left.cells] if self.left.split else least.reshape(-1)

    @property
    def _is_small(self) -> bool:
        return self.entries <= WHOLE or len(self.shape) == 1

    def _whole(self, fixed: list[Floats], found: Sequence[Floats]) -> Floats:
        parts = [*fixed, *(part.laid_out(found[part.factor.step]) for part in self.parts)]
        return np.asarray(_sum(parts).min(axis=0))

    def _by_class(self, fixed: list[Floats], found: Sequence[Floats]) -> Floats:
        """The same minimum without the table: sums for one class at a time."""
        every = np.arange(self.shape[0])
        parts: list[tuple[Floats, Ints]] = [(table, every) for table in self._joined(fixed)]
        for part in self.parts:
            index = part.first()
            table = part.laid_out(found[part.factor.step], but_first=True)
            parts.append((table, every if index is None else index))
        parts.sort(key=lambda part: part[0].size)
        least = np.empty(self.shape[1:])
        room = np.empty(self.shape[1:])
        for i in range(self.shape[0]):
            rows = [table[index[i]] for table, index in parts]
            target = room if i else least
            np.add(_sum(rows[:-1]), rows[-1], out=target)
            if i:
                np.minimum(least, room, out=least)
        return least

    def _joined(self, tables: list[Floats]) -> list[Floats]:
        """Added up as long as the sum is small."""
        ordered = sorted(tables, key=lambda table: table.size)
        found = [ordered[0]]
        for table in ordered[1:]:
            if prod(np.broadcast_shapes(found[0].shape, table.shape)) <= WHOLE:
                found[0] = found[0] + table
            else:
                found.append(table)
        return found


def dense_step(node: int, axes: dict[int, View], factors: tuple[Factor, ...], views: Views, index: int) -> DenseStep:
    """`axes`: the nodes of the table, `node` first, and the view of each that its factors need."""
    constants, parts = lay_out(axes, factors, views)
    near, shape = tuple(axes)[1:], tuple(view.size for view in axes.values())
    left = Factor(near, tuple(axes.values())[1:], 0, ONE_CELL, index)
    possible = _possible(axes, factors, views)
    if possible is not None:
        cells = np.flatnonzero(np.broadcast_to(possible, shape[1:]))
        if not len(cells):
            raise ImpossibleError
        if len(cells) < prod(shape[1:]):
            left = Factor(near, left.views, len(near), cells, index)
    return DenseStep(node, axes[node], factors, left, shape, constants, parts)


def lay_out(
    axes: dict[int, View], factors: Sequence[Factor], views: Views
) -> tuple[tuple[Floats, ...], tuple[Part, ...]]:
    """Edges and messages over `axes`."""
    constants = [_part(axes, factor, views).laid_out(factor.values) for factor in factors if factor.values is not None]
    if len(constants) > 1 and prod(np.broadcast_shapes(*(table.shape for table in constants))) <= WHOLE:
        constants = [_sum(constants)]
    return tuple(constants), tuple(_part(axes, factor, views) for factor in factors if factor.values is None)


def _part(axes: dict[int, View], factor: Factor, views: Views) -> Part:
    place = {node: i for i, node in enumerate(axes)}
    pairs = enumerate(zip(factor.nodes, factor.views, strict=True))
    finer = tuple((i, views.translation(axes[node], view)) for i, (node, view) in pairs if axes[node] is not view)
    return Part(factor, finer, tuple(place[node] for node in factor.nodes), len(axes))


def _possible(axes: dict[int, View], factors: Sequence[Factor], views: Views) -> Bools | None:
    """Which combinations of the neighbours' classes forbidden pairs leave, whatever the first node's; None: all."""
    finite: Bools | None = None
    for factor in factors:
        if factor.split:
            allowed = _part(axes, factor, views).finite()
            finite = allowed if finite is None else finite & allowed
    return None if finite is None else np.asarray(finite.any(axis=0))


def _sum(parts: Sequence[Floats]) -> Floats:
    ordered = sorted(parts, key=lambda part: part.size)
    total = ordered[0]
    for part in ordered[1:]:
        total = total + part
    return total
