"""An elimination step over a full table: an axis for the eliminated node, one for each neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.select.elimination.factor import ONE_CELL, Bools, Factor, ImpossibleError
from meshwright.select.elimination.views import View, Views
from meshwright.select.problem import Floats, Ints

# Entries up to which a table is summed in one piece; of larger ones as many classes at a time as stay in the cache.
WHOLE = 50_000
# What part of a table the sum of edges may have that is kept ready.
READY = 1 / 8


@dataclass(frozen=True, slots=True)
class Part:
    """How a factor is laid out to broadcast over a table of `rank` axes: repeated where the table's classes are finer,
    axis i at `place[i]`.
    """

    factor: Factor
    finer: tuple[tuple[int, Ints], ...]  # axis, and the factor's class of each class of the table
    place: tuple[int, ...]
    rank: int

    def laid_out(self, values: Floats) -> Floats:
        table = self.factor.unfolded(values)
        for axis, index in self.finer:
            table = table.take(index, axis)
        return self._formed(table)

    def compact(self, values: Floats) -> Floats:
        """The same at the factor's own classes."""
        return np.ascontiguousarray(self._formed(self.factor.unfolded(values)))

    def finer_at(self) -> dict[int, Ints]:
        """By axis of the table: the factor's class of each of its classes, where they differ."""
        return {self.place[axis]: index for axis, index in self.finer}

    def finite(self) -> Bools:
        """Which entries can be finite; of length 1 along axes that do not matter for that."""
        table = self.factor.allowed()
        for axis, index in self.finer:
            table = table.take(index, axis) if axis < self.factor.split else table
        return self._formed(table)

    def _formed(self, table: np.ndarray) -> np.ndarray:
        """Its axes in the order of the table's, and of length 1 where it has none."""
        shape = [1] * self.rank
        for place, size in zip(self.place, table.shape, strict=True):
            shape[place] = size
        return table.transpose(sorted(range(len(self.place)), key=self.place.__getitem__)).reshape(shape)


class _Slices:
    """A table by classes of the first axis: `index` its own class of each; `finer` as of a Part, for other axes."""

    def __init__(self, table: Floats, index: Ints | None = None, finer: dict[int, Ints] | None = None) -> None:
        self.table, self.index, self.finer = table, index, finer or {}
        self.last: tuple[int, Floats] | None = None

    def between(self, begin: int, end: int) -> Floats:
        if self.index is None:
            return self._spread(self.table[begin:end])
        if end > begin + 1:
            return self._spread(self.table[self.index[begin:end]])
        own = int(self.index[begin])
        if self.last is None or self.last[0] != own:
            self.last = own, self._spread(self.table[own : own + 1])
        return self.last[1]

    def _spread(self, table: Floats) -> Floats:
        for axis, index in self.finer.items():
            table = table.take(index, axis)
        return table


@dataclass(frozen=True, slots=True)
class DenseStep:
    """`node` goes; `view` are its classes, `factors` its tables, `left` what takes their place. `by`: the order in
    which its classes are gone through."""

    node: int
    view: View
    factors: tuple[Factor, ...]
    left: Factor
    shape: tuple[int, ...]
    constants: tuple[Floats, ...]
    parts: tuple[Part, ...]
    by: Ints | None = None

    @property
    def entries(self) -> int:
        return prod(self.shape)

    def fill(self, out: Floats, costs: Floats, found: Sequence[Floats]) -> None:
        """Puts the values of `left` into `out`, for the costs of the node's classes and the values of earlier steps."""
        costs = (costs if self.by is None else costs[self.by]).reshape(-1, *(1,) * (len(self.shape) - 1))
        target = np.empty(self.shape[1:]) if self.left.split else out.reshape(self.shape[1:])
        if self.by is None:
            parts = [costs, *self.constants, *(part.laid_out(found[part.factor.step]) for part in self.parts)]
            sum_of(parts).min(axis=0, out=target)
        else:
            self._in_slices(target, costs, found, self.by)
        if self.left.split:
            target.take(self.left.cells, out=out, mode="clip")

    def _in_slices(self, least: Floats, costs: Floats, found: Sequence[Floats], by: Ints) -> None:
        """The same minimum without the table: sums for a few classes at a time."""
        parts = [_Slices(table) for table in _with(costs, self.constants)]
        for part in self.parts:
            finer = part.finer_at()
            parts.append(_Slices(part.compact(found[part.factor.step]), finer.pop(0, np.arange(len(by)))[by], finer))
        parts.sort(key=lambda part: part.table.size)
        step = max(1, WHOLE // least.size)
        room = np.empty((step, *least.shape))
        least.fill(np.inf)
        for begin in range(0, len(by), step):
            end = min(begin + step, len(by))
            total = sum_into(room[: end - begin], [part.between(begin, end) for part in parts])
            np.minimum(least, total.min(axis=0) if end > begin + 1 else total[0], out=least)


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
    by = None
    if prod(shape) > WHOLE and len(shape) > 1:
        by = _by_largest(parts, shape[0])
        constants = tuple(table[by] for table in constants)
    return DenseStep(node, axes[node], factors, left, shape, constants, parts, by)


def lay_out(
    axes: dict[int, View], factors: Sequence[Factor], views: Views
) -> tuple[tuple[Floats, ...], tuple[Part, ...]]:
    """Edges and messages over `axes`."""
    constants = [_part(axes, factor, views).laid_out(factor.values) for factor in factors if factor.values is not None]
    most = max(WHOLE, READY * prod(view.size for view in axes.values()))
    return _joined(constants, most), tuple(_part(axes, factor, views) for factor in factors if factor.values is None)


def _joined(tables: list[Floats], most: float) -> tuple[Floats, ...]:
    """Added up as long as sums have at most `most` entries; those with the last axes first, so that what is left to add
    runs over long stretches.
    """
    found: list[Floats] = []
    for table in sorted(tables, key=lambda table: table.shape[::-1], reverse=True):
        if found and prod(np.broadcast_shapes(found[-1].shape, table.shape)) <= most:
            found[-1] = found[-1] + table
        else:
            found.append(table)
    return tuple(found)


def _by_largest(parts: Sequence[Part], classes: int) -> Ints:
    """An order of the first axis in which equal slices of the largest part come one after another."""
    if parts:
        index = max(parts, key=lambda part: part.factor.stored).finer_at().get(0)
        if index is not None:
            return np.argsort(index, kind="stable")
    return np.arange(classes)


def _with(costs: Floats, tables: Sequence[Floats]) -> list[Floats]:
    """The tables, with `costs` added to the smallest."""
    if not tables:
        return [costs]
    first, *others = sorted(tables, key=lambda table: table.size)
    return [first + costs, *others]


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


def sum_of(parts: Sequence[Floats]) -> Floats:
    ordered = sorted(parts, key=lambda part: part.size)
    total = ordered[0]
    for part in ordered[1:]:
        total = total + part
    return total


def sum_into(room: Floats, parts: Sequence[Floats]) -> Floats:
    """The sum of parts, the large ones last, in `room`."""
    if len(parts) == 1:
        room[...] = parts[0]
        return room
    np.add(parts[-1], parts[-2], out=room)
    if len(parts) > 2:
        room += sum_of(parts[:-2])
    return room
