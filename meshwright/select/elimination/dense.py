"""An elimination step over a full table: an axis for the eliminated node, one for each neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.select.elimination.factor import ONE_CELL, Factor, ImpossibleError, extended
from meshwright.select.elimination.views import View, Views
from meshwright.select.problem import Floats, Ints

# Entries up to which a table is summed in one piece; larger ones are minimised class by class, in the cache.
WHOLE = 50_000
# Entries up to which constant tables of a step are added up beforehand.
CONSTANT = 1_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """A message laid out to broadcast over a table: transposed, or (`pick`) entry by entry."""

    factor: Factor
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    pick: Ints | None
    whole: bool  # all that is picked is stored

    def laid_out(self, values: Floats) -> Floats:
        if self.pick is None:
            return values.reshape(self.factor.sizes).transpose(self.axes).reshape(self.shape)
        return (values if self.whole else extended(values))[self.pick].reshape(self.shape)


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
        parts = [costs.reshape(-1, *(1,) * (len(self.shape) - 1)), *self.constants]
        parts += [part.laid_out(found[part.factor.step]) for part in self.parts]
        whole = self.entries <= WHOLE or len(self.shape) == 1
        least = np.asarray(_sum(parts).min(axis=0) if whole else _by_class(parts, self.entries)).reshape(-1)
        return least[self.left.cells] if self.left.split else least


def dense_step(node: int, axes: dict[int, View], factors: tuple[Factor, ...], views: Views, index: int) -> DenseStep:
    """`axes`: the nodes of the table, `node` first, and the view of each that its factors need."""
    constants, parts, finite = lay_out(axes, factors, views)
    near, shape = tuple(axes)[1:], tuple(view.size for view in axes.values())
    seen = tuple(axes[other] for other in near)
    left = Factor(near, seen, 0, ONE_CELL, index)
    if finite is not None:
        possible = np.broadcast_to(finite, shape).any(axis=0).reshape(-1)
        cells = np.flatnonzero(possible)
        if not len(cells):
            raise ImpossibleError
        if len(cells) < len(possible):
            left = Factor(near, seen, len(near), cells, index)
    return DenseStep(node, axes[node], factors, left, shape, tuple(constants), tuple(parts))


def lay_out(
    axes: dict[int, View], factors: Sequence[Factor], views: Views
) -> tuple[list[Floats], list[Part], np.ndarray | None]:
    """Edges and messages over `axes`, and which entries can be finite (None: all)."""
    constants: list[Floats] = []
    parts: list[Part] = []
    finite: np.ndarray | None = None
    for factor in factors:
        part = _part(axes, factor, views)
        if factor.values is None:
            parts.append(part)
        else:
            constants.append(part.laid_out(factor.values))
        if not part.whole and part.pick is not None:
            stored = (part.pick < factor.stored).reshape(part.shape)
            finite = stored if finite is None else finite & stored
    return _added_up(constants), parts, finite


def _part(axes: dict[int, View], factor: Factor, views: Views) -> Part:
    place = {node: i for i, node in enumerate(axes)}
    order = tuple(sorted(range(len(factor.nodes)), key=lambda i: place[factor.nodes[i]]))
    shape = [1] * len(axes)
    for node in factor.nodes:
        shape[place[node]] = axes[node].size
    same = all(axes[node] is view for node, view in zip(factor.nodes, factor.views, strict=True))
    if same and not factor.split:
        return Part(factor, tuple(shape), order, None, True)
    at = []
    for node, view in zip(factor.nodes, factor.views, strict=True):
        spread = [1] * len(axes)
        spread[place[node]] = axes[node].size
        at.append(views.translation(axes[node], view).reshape(spread))
    pick = np.broadcast_to(factor.places(at), shape).reshape(-1)
    return Part(factor, tuple(shape), order, pick, not factor.split or bool((pick < factor.stored).all()))


def _added_up(constants: list[Floats]) -> list[Floats]:
    """One table where that is not too large, else those that there were."""
    if len(constants) > 1 and prod(np.broadcast_shapes(*(table.shape for table in constants))) <= CONSTANT:
        return [_sum(constants)]
    return constants


def _sum(parts: Sequence[Floats]) -> Floats:
    ordered = sorted(parts, key=lambda part: part.size)
    total = ordered[0]
    for part in ordered[1:]:
        total = total + part
    return total


def _by_class(parts: list[Floats], entries: int) -> Floats:
    """The same minimum without the table: sums for one class at a time."""
    ordered = sorted(parts, key=lambda part: part.size)
    large = [ordered.pop()]
    total = ordered.pop(0)
    for part in ordered:
        if prod(np.broadcast_shapes(total.shape, part.shape)) < entries:
            total = total + part
        else:
            large.append(part)
    large.append(total)
    least = _sum([part[0] for part in large])
    room = np.empty_like(least)
    for i in range(1, len(total)):
        np.add(large[0][i], large[1][i], out=room)
        for part in large[2:]:
            np.add(room, part[i], out=room)
        np.minimum(least, room, out=least)
    return least
