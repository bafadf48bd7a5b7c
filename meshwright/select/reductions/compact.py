"""Compact edges: options that an edge cannot tell apart (equal rows of its matrix, or equal columns) are one class to
it. A matrix of 40 x 40 options with 4 x 5 different rows and columns is one of 20 entries, and HiGHS needs 20 pair
variables for it and not 1,600 (`model`).

Unlike twins, which agree on every edge and every row, classes differ from edge to edge, so options stay as they are.
`elimination` does the same for tables over any number of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.select.problem import Floats, Ints


@dataclass(frozen=True, slots=True)
class Compact:
    """`matrix` over classes; `rows` and `columns`: the class of every option of either end."""

    matrix: Floats
    rows: Ints
    columns: Ints

    @property
    def pairs(self) -> int:
        """Classes that may meet."""
        return int(np.count_nonzero(np.isfinite(self.matrix)))


def apply(matrix: Floats) -> Compact:
    rows, row_of = _classes(matrix)
    columns, column_of = _classes(matrix[rows].T)
    return Compact(matrix[np.ix_(rows, columns)], row_of, column_of)


def _classes(matrix: Floats) -> tuple[Ints, Ints]:
    """A representative of every class of equal rows, and the class of every row."""
    finite = np.where(np.isfinite(matrix), matrix, -1e300)
    # Equal rows have equal keys; the comparison below is for others that have, too.
    key = finite @ np.sqrt(np.arange(2.0, 2.0 + matrix.shape[1]))
    _, first, class_of = np.unique(key, return_index=True, return_inverse=True)
    class_of = class_of.reshape(-1)
    if not np.array_equal(finite[first][class_of], finite):
        _, first, class_of = np.unique(finite, axis=0, return_index=True, return_inverse=True)
    return first, class_of.reshape(-1)
