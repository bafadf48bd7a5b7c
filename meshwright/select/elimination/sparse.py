"""An elimination step over the combinations that can be finite.

A row for every combination of classes of the nodes that forbidden pairs constrain (`relation`), and in every row a
block for the other nodes. Rows that differ only in the eliminated node's class compete: first comes one row of every
combination of neighbours, then a second of those that have one, and so on, those with most rows first. So each of
these *levels* is a slice, and the minimum is one of whole slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.select.elimination.dense import sum_into
from meshwright.select.elimination.factor import ONE_CELL, Factor, ImpossibleError
from meshwright.select.elimination.relation import Columns
from meshwright.select.elimination.views import View, Views
from meshwright.select.problem import Floats, Ints

# Entries up to which all levels are summed in one piece.
WHOLE = 200_000
# Entries of a block from which rows are summed one at a time.
ALONE = 2_000


@dataclass(frozen=True, slots=True)
class Rows:
    """A factor by row. `pick`: which of its own rows; these are its cells times those of its other nodes that the step
    constrains. `order`: its axes with these first; `finer`: where its blocks repeat entries; `shape`: of its blocks.
    """

    factor: Factor
    pick: Ints
    order: tuple[int, ...]
    finer: tuple[tuple[int, Ints], ...]
    shape: tuple[int, ...]

    def blocks(self, values: Floats) -> Floats:
        """A block of `shape` for each of the factor's own rows."""
        table = values.reshape(len(self.factor.cells), *self.factor.sizes[self.factor.split :]).transpose(self.order)
        for axis, index in self.finer:
            table = table.take(index, axis)
        return table.reshape(-1, *self.shape)


@dataclass(frozen=True, slots=True)
class SparseStep:
    """As a `DenseStep`. own: class of the node by row. levels: sizes of the slices. back: the row of the first slice
    for each cell of `left`."""

    node: int
    view: View
    factors: tuple[Factor, ...]
    left: Factor
    own: Ints
    block: tuple[int, ...]
    constants: tuple[Floats, ...]
    parts: tuple[Rows, ...]
    levels: tuple[int, ...]
    back: Ints

    @property
    def entries(self) -> int:
        return len(self.own) * prod(self.block)

    def fill(self, out: Floats, costs: Floats, found: Sequence[Floats]) -> None:
        """Puts the values of `left` into `out`, for the costs of the node's classes and the values of earlier steps."""
        blocks = [part.blocks(found[part.factor.step]) for part in self.parts]
        if prod(self.block) >= ALONE:
            self._fill_rows(out.reshape(-1, *self.block), costs, blocks)
            return
        first = self.levels[0]
        together = self.entries <= WHOLE
        total = self._sum(costs, blocks, 0, len(self.own) if together else first)
        least, begin = total[:first], first
        for count in self.levels[1:]:
            rival = total[begin : begin + count] if together else self._sum(costs, blocks, begin, begin + count)
            np.minimum(least[:count], rival, out=least[:count])
            begin += count
        least.take(self.back, axis=0, out=out.reshape(-1, *self.block), mode="clip")

    def _fill_rows(self, out: Floats, costs: Floats, blocks: list[Floats]) -> None:
        """The same a row at a time: its sum stays in the cache."""
        every = np.arange(len(self.own))
        parts = [(costs.reshape(-1, *(1,) * len(self.block)), self.own), *((table, every) for table in self.constants)]
        parts += [(table, part.pick) for part, table in zip(self.parts, blocks, strict=True)]
        parts.sort(key=lambda part: part[0][0].size)
        room = np.empty(self.block)
        places = np.argsort(self.back)
        begin = 0
        for count in self.levels:
            for row, place in enumerate(places[:count], begin):
                least = out[place]
                total = sum_into(room if begin else least, [table[index[row]] for table, index in parts])
                if begin:
                    np.minimum(least, total, out=least)
            begin += count

    def _sum(self, costs: Floats, blocks: list[Floats], begin: int, end: int) -> Floats:
        """Rows `begin` to `end`."""
        parts = [costs[self.own[begin:end]].reshape(-1, *(1,) * len(self.block))]
        parts += [table[begin:end] for table in self.constants]
        parts += [table.take(part.pick[begin:end], 0) for part, table in zip(self.parts, blocks, strict=True)]
        parts.sort(key=lambda part: part.size)
        return sum_into(np.empty((end - begin, *self.block)), parts)


def sparse_step(
    node: int, axes: dict[int, View], factors: tuple[Factor, ...], views: Views, index: int, columns: Columns
) -> SparseStep:
    """`columns`: the combinations of classes of the constrained nodes, among them `node`."""
    if not len(columns[node]):
        raise ImpossibleError
    bound = [other for other in axes if other in columns and other != node]
    free = [other for other in axes if other not in columns]
    key = np.zeros(len(columns[node]), dtype=np.int64)
    for other in bound:
        key = key * axes[other].size + columns[other]
    order, levels, cells, back = _levels(key)
    columns = {other: column[order] for other, column in columns.items()}
    seen = tuple(axes[other] for other in (*bound, *free))
    every = len(cells) == prod(axes[other].size for other in bound)
    left = Factor((*bound, *free), seen, 0 if every else len(bound), ONE_CELL if every else cells, index)
    constants, parts = [], []
    for factor in factors:
        rows = _rows(factor, axes, columns, free, views)
        if factor.values is None:
            parts.append(rows)
        else:
            constants.append(rows.blocks(factor.values)[rows.pick])
    block = tuple(axes[other].size for other in free)
    return SparseStep(node, axes[node], factors, left, columns[node], block, tuple(_by_shape(constants)), tuple(parts),
                      levels, back)  # fmt: skip


def _levels(key: Ints) -> tuple[Ints, tuple[int, ...], Ints, Ints]:
    """An order of rows by level, the sizes of levels, the distinct keys and the place of each in the first level."""
    by_key = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.concatenate(([True], np.diff(key[by_key]) != 0)))
    counts = np.diff(np.append(starts, len(key)))
    most_first = np.argsort(-counts, kind="stable")
    back = np.empty(len(counts), dtype=np.int64)
    back[most_first] = np.arange(len(counts))
    rank = np.arange(len(key)) - np.repeat(starts, counts)
    order = by_key[np.lexsort((np.repeat(back, counts), rank))]
    levels = np.cumsum(np.bincount(counts)[::-1])[::-1][1:]
    return order, tuple(levels.tolist()), key[by_key[starts]], back


def _rows(factor: Factor, axes: dict[int, View], columns: Columns, free: list[int], views: Views) -> Rows:
    """Where the entries of a factor are stored, by row and by the free nodes among its own."""
    split = factor.split
    named = dict(zip(factor.nodes, factor.views, strict=True))
    fixed = [node for node in factor.nodes[split:] if node in columns]
    spread = [node for node in free if node in named]
    pick: Ints = np.zeros(len(columns[next(iter(columns))]), dtype=np.int64)
    for node in factor.nodes[:split]:
        pick = pick * named[node].size + views.translation(axes[node], named[node])[columns[node]]
    pick = np.searchsorted(factor.cells, pick) if split else pick
    for node in fixed:
        pick = pick * named[node].size + views.translation(axes[node], named[node])[columns[node]]
    order = (0, *(1 + factor.nodes.index(node) - split for node in (*fixed, *spread)))
    finer = tuple(
        (1 + len(fixed) + i, views.translation(axes[node], named[node]))
        for i, node in enumerate(spread)
        if axes[node] is not named[node]
    )
    return Rows(factor, pick, order, finer, tuple(axes[node].size if node in named else 1 for node in free))


def _by_shape(constants: list[Floats]) -> list[Floats]:
    """Added up where that takes no more room."""
    found: dict[tuple[int, ...], Floats] = {}
    for table in constants:
        found[table.shape] = found[table.shape] + table if table.shape in found else table
    return list(found.values())
