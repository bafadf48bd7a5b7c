"""Views: partitions of a node's options into classes, each distinct one kept once.

A table need not have an entry per option: what an edge cannot tell apart is one class to it (equal rows of its
matrix). Where two tables meet at a node, what they tell apart together is the *join* of their views.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from meshwright.select.problem import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """`labels[o]`: the class of option o; classes are numbered as they first appear."""

    labels: tuple[int, ...]
    size: int
    index: Ints  # labels as an array
    first: Ints  # an option of every class


class Views:
    """Makes views, and remembers joins and translations, so that equal ones are the same object."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], View] = {}
        self._joins: dict[tuple[View, View], View] = {}
        self._translations: dict[tuple[View, View], Ints] = {}
        self._compact: dict[tuple[tuple[int, ...], bytes], tuple[Floats, View, View]] = {}

    def by(self, keys: Iterable[Hashable]) -> View:
        """Options with equal keys are one class."""
        seen: dict[Hashable, int] = {}
        labels = tuple([seen.setdefault(key, len(seen)) for key in keys])
        view = self._known.get(labels)
        if view is None:
            index = np.array(labels, dtype=np.int64)
            first = np.full(len(seen), len(labels), dtype=np.int64)
            np.minimum.at(first, index, np.arange(len(labels)))
            view = self._known[labels] = View(labels, len(seen), index, first)
        return view

    def join(self, one: View, two: View) -> View:
        """The coarsest view that tells apart what either does."""
        if one is two or one.size == len(one.labels):
            return one
        key = (one, two)
        if key not in self._joins:
            self._joins[key] = self.by(zip(one.labels, two.labels, strict=True))
        return self._joins[key]

    def translation(self, fine: View, coarse: View) -> Ints:
        """The class in `coarse` of every class of `fine`, which is at least as fine."""
        key = (fine, coarse)
        if key not in self._translations:
            self._translations[key] = coarse.index[fine.first]
        return self._translations[key]

    def compact(self, matrix: Floats) -> tuple[Floats, View, View]:
        """The matrix over classes of equal rows and equal columns."""
        matrix = np.ascontiguousarray(matrix)
        key = (matrix.shape, matrix.tobytes())
        if key not in self._compact:
            self._compact[key] = self._classes(matrix)
        return self._compact[key]

    def _classes(self, matrix: Floats) -> tuple[Floats, View, View]:
        rows = self.by([row.tobytes() for row in matrix])
        matrix = matrix[rows.first]
        columns = self.by([column.tobytes() for column in np.ascontiguousarray(matrix.T)])
        return matrix[:, columns.first], rows, columns
