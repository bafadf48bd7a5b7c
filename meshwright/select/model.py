"""The integer program of a `Problem`, as arrays.

    min  c x + E y
    sum_s x_is = 1                                            one option per node
    sum_(t in V) y_UV - sum_(s in U) x_is = 0                 per edge ij and class U of rows
    sum_(s in U) y_UV - sum_(t in V) x_jt = 0                 per edge ij and class V of columns
    sum bytes x <= limit                                      per row asked for

Pairs are of classes of options that the edge cannot tell apart (`reductions.compact`). Pairs of infinite cost have no
variable. The y may stay continuous: with x integral they are too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.select.problem import Floats, Ints, Problem
from meshwright.select.reductions import compact


@dataclass(frozen=True, slots=True)
class Model:
    """Columns: options first, then pair classes. `start`, `index`, `value` are the rows of the matrix in CSR form."""

    cost: Floats
    options: int
    lower: Floats
    upper: Floats
    start: Ints
    index: Ints
    value: Floats
    pair_edge: Ints
    pair_row: Ints
    pair_column: Ints
    classes: list[tuple[Ints, Ints]]  # per edge: class of every row option, of every column option


@dataclass(slots=True)
class _Rows:
    """Collects coefficient rows."""

    lengths: list[int]
    index: list[Ints]
    value: list[Floats]
    lower: list[float]
    upper: list[float]

    def add(self, index: Ints, value: Floats, lower: float, upper: float) -> None:
        self.lengths.append(len(index))
        self.index.append(index)
        self.value.append(value)
        self.lower.append(lower)
        self.upper.append(upper)


def formulate(problem: Problem, rows: Ints) -> Model:
    """The program with the rows of `problem.limits` named in `rows`; others are left out (lazy rows)."""
    n = len(problem.costs)
    out = _Rows([], [], [], [], [])
    for a, b in zip(problem.offsets[:-1], problem.offsets[1:], strict=True):
        out.add(np.arange(a, b), np.ones(b - a), 1.0, 1.0)
    costs = [problem.costs]
    pairs: list[tuple[Ints, Ints, Ints]] = []
    classes = []
    next_column = n
    for edge in range(problem.edges):
        short = compact.apply(problem.matrix(edge))
        classes.append((short.rows, short.columns))
        where = np.argwhere(np.isfinite(short.matrix))
        column = next_column + np.arange(len(where))
        next_column += len(where)
        costs.append(short.matrix[where[:, 0], where[:, 1]])
        pairs.append((np.full(len(where), edge), where[:, 0], where[:, 1]))
        a, b = problem.edge_nodes[edge]
        _link(out, column, where[:, 0], short.rows, int(problem.offsets[a]))
        _link(out, column, where[:, 1], short.columns, int(problem.offsets[b]))
    for row in rows.tolist():
        index, size = row_coefficients(problem, row)
        out.add(index, size, -np.inf, float(problem.limits[row]))
    edge_of, row_class, column_class = (
        (np.concatenate(part) for part in zip(*pairs, strict=True)) if pairs else (_none(),) * 3
    )
    return Model(
        cost=np.concatenate(costs),
        options=n,
        lower=np.array(out.lower),
        upper=np.array(out.upper),
        start=np.concatenate(([0], np.cumsum(out.lengths))).astype(np.int64),
        index=np.concatenate(out.index) if out.index else _none(),
        value=np.concatenate(out.value) if out.value else np.zeros(0),
        pair_edge=edge_of,
        pair_row=row_class,
        pair_column=column_class,
        classes=classes,
    )


def count_pairs(problem: Problem, most: int) -> int:
    """Pair variables the program needs; stops counting beyond `most`."""
    total = 0
    for edge in range(problem.edges):
        total += compact.apply(problem.matrix(edge)).pairs
        if total > most:
            break
    return total


def row_coefficients(problem: Problem, row: int) -> tuple[Ints, Floats]:
    """Option entries with bytes in `row`, and their bytes."""
    on = (problem.use_begin <= row) & (problem.use_end > row)
    index, place = np.unique(problem.use_option[on], return_inverse=True)
    size = np.zeros(len(index))
    np.add.at(size, place.reshape(-1), problem.use_bytes[on])
    return index, size


def columns_of(model: Model, problem: Problem, choice: Ints) -> Floats:
    """The point of the program that stands for `choice`."""
    value = np.zeros(len(model.cost))
    value[problem.offsets[:-1] + choice] = 1.0
    if len(model.pair_edge):
        ends = choice[problem.edge_nodes]
        row = np.array([rows[s] for (rows, _), s in zip(model.classes, ends[:, 0], strict=True)])
        column = np.array([columns[t] for (_, columns), t in zip(model.classes, ends[:, 1], strict=True)])
        edge = model.pair_edge
        value[model.options :] = (row[edge] == model.pair_row) & (column[edge] == model.pair_column)
    return value


def _link(out: _Rows, column: Ints, member: Ints, class_of: Ints, offset: int) -> None:
    """sum of the pairs of each class = sum of the options of that class."""
    for kind in range(int(class_of.max()) + 1):
        pairs = column[member == kind]
        own = offset + np.flatnonzero(class_of == kind)
        value = np.concatenate((np.ones(len(pairs)), -np.ones(len(own))))
        out.add(np.concatenate((pairs, own)), value, 0.0, 0.0)


def _none() -> npt.NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)
