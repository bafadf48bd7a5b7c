"""A table over classes of options of some nodes, of which only the entries that can be finite are stored.

The axes come in two groups: over the first `split` only the combinations `cells` are stored, over the others all. So
the stored values have the shape (cells, block): for a matrix without forbidden pairs one cell and a block of all
its entries, for one with forbidden pairs a cell per allowed pair and blocks of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from meshwright.select.elimination.views import View, Views
from meshwright.select.problem import Floats, Ints

Bools = npt.NDArray[np.bool_]
ONE_CELL: Ints = np.zeros(1, dtype=np.int64)


class ImpossibleError(Exception):
    """Forbidden pairs leave no combination at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """An edge with its `values`, flat; or what step number `step` leaves. `cells` are sorted."""

    nodes: tuple[int, ...]
    views: tuple[View, ...]
    split: int
    cells: Ints
    step: int = -1
    values: Floats | None = None
    sizes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple([view.size for view in self.views]))

    @property
    def block(self) -> int:
        return prod(self.sizes[self.split :])

    @property
    def stored(self) -> int:
        return len(self.cells) * self.block

    def unfolded(self, values: Floats) -> Floats:
        """The whole table, infinite where nothing is stored."""
        if not self.split:
            return values.reshape(self.sizes)
        table = np.full((prod(self.sizes[: self.split]), self.block), np.inf)
        table[self.cells] = values.reshape(-1, self.block)
        return table.reshape(self.sizes)

    def allowed(self) -> Bools:
        """What is stored, of length 1 along the axes that all of it has."""
        flags = np.zeros(prod(self.sizes[: self.split]), dtype=bool)
        flags[self.cells] = True
        return flags.reshape(*self.sizes[: self.split], *(1,) * (len(self.sizes) - self.split))

    def places(self, at: Sequence[Ints | int]) -> Ints:
        """Where the entries at these classes (one array per axis, broadcast) are stored; `stored` where none is."""
        sizes = self.sizes
        inner = _flat(at[self.split :], sizes[self.split :])
        if not self.split:
            return np.asarray(inner)
        cell = _flat(at[: self.split], sizes[: self.split])
        row = np.searchsorted(self.cells, cell)
        known = self.cells[np.minimum(row, len(self.cells) - 1)] == cell
        return np.asarray(np.where(known, row * self.block + inner, self.stored))

    def column(self, values: Floats, free: int, choice: Sequence[int]) -> Floats:
        """Its entries for a choice of all nodes but one, per option of that one."""
        pairs = zip(self.nodes, self.views, strict=True)
        at = [view.index if node == free else view.labels[choice[node]] for node, view in pairs]
        return extended(values)[self.places(at)]


def edge_factor(nodes: tuple[int, int], matrix: Floats, views: Views) -> Factor:
    """Over those of the two ends whose options it can tell apart."""
    table, *seen = views.compact(matrix)
    apart = [(node, view) for node, view in zip(nodes, seen, strict=True) if view.size > 1]
    ends, sights = tuple(node for node, _ in apart), tuple(view for _, view in apart)
    flat = table.reshape(-1)
    finite = np.isfinite(flat)
    if finite.all():
        return Factor(ends, sights, 0, ONE_CELL, values=flat)
    cells = np.flatnonzero(finite)
    if not len(cells):
        raise ImpossibleError
    return Factor(ends, sights, len(ends), cells, values=flat[cells])


def extended(values: Floats) -> Floats:
    """With an infinite entry at the end, for what is not stored."""
    return np.append(values, np.inf)


def _flat(at: Sequence[Ints | int], sizes: Sequence[int]) -> Ints | int:
    total: Ints | int = 0
    for index, size in zip(at, sizes, strict=True):
        total = total * size + index
    return total
