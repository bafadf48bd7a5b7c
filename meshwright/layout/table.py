"""Seconds from many layouts of a tensor to all others at once: single steps priced, then joined (Bellman-Ford).

The same lengths that Dijkstra finds in `path`; a planner asks for many pairs, so whole rows together are cheaper.
Along an axis that shards one dim everywhere nothing is to be gained by leaving it: each of its ranks has a tensor of
its own, and converts it on the other axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshwright.caches import CACHES
from meshwright.cluster.mesh import FLAT, Mesh
from meshwright.layout.path import layout_numbers, step_seconds
from meshwright.layout.states import Layout

Floats = npt.NDArray[np.float64]

AT_A_TIME = 16
"""Rows that are worked out together: their sums with all edges stay in the cache."""


class _Lengths:
    """Forward and backward seconds from the layouts asked for so far (rows) to each (columns), by `layout_numbers`.

    Edges are few: they are held by target, those into each one after the other.
    """

    def __init__(self, steps: Floats) -> None:
        self._steps = steps
        self._targets, self._sources = np.nonzero(np.isfinite(steps.T))
        self._seconds = steps[self._sources, self._targets]
        self._rows: dict[int, Floats] = {}

    def rows(self, numbers: Sequence[int]) -> Floats:
        missing = [number for number in dict.fromkeys(numbers) if number not in self._rows]
        for begin in range(0, len(missing), AT_A_TIME):
            some = missing[begin : begin + AT_A_TIME]
            self._rows.update(zip(some, self._reached(some), strict=True))
        return np.stack([self._rows[number] for number in numbers])

    def _reached(self, rows: list[int]) -> Floats:
        """By ever more steps, until that is no shorter; a step more from where the last has made something shorter."""
        lengths = np.ascontiguousarray(self._steps[rows].T)
        shorter = np.asarray(np.isfinite(lengths).any(axis=1))
        while shorter.any():
            edges = np.flatnonzero(shorter[self._sources])
            starts = np.flatnonzero(np.diff(self._targets[edges], prepend=-1))
            targets = self._targets[edges[starts]]
            before, sums = lengths[targets], lengths[self._sources[edges]] + self._seconds[edges, None]
            lengths[targets] = np.minimum(before, np.minimum.reduceat(sums, starts, axis=0))
            shorter[:] = False
            shorter[targets] = (lengths[targets] < before).any(axis=1)
        return lengths.T


@CACHES.memoized(maxsize=1 << 12)
def _lengths(shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> _Lengths:
    return _Lengths(step_seconds(shape, itemsize, mesh, grad))


def conversion_matrix(
    made: tuple[Layout, ...], wants: tuple[Layout, ...], shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool
) -> npt.NDArray[np.float64]:
    """Seconds from each of some layouts to each of some others."""
    kept, shape = _moving(made + wants, shape, mesh)
    if len(kept) < len(mesh.axes):
        mesh = submesh(mesh, kept)
        made, wants = (tuple(Layout(tuple(one[i] for i in kept)) for one in side) for side in (made, wants))
    number = layout_numbers(len(shape), len(mesh.axes))
    rows, columns = [number[layout] for layout in made], [number[layout] for layout in wants]
    return _lengths(shape, itemsize, mesh, grad).rows(rows)[:, columns]


def _moving(layouts: tuple[Layout, ...], shape: tuple[int, ...], mesh: Mesh) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes but those that shard one dim in all layouts, which no other axis outside of them does, and the shape
    that is left to the others."""
    kept, sizes = [], list(shape)
    for axis, size in enumerate(mesh.sizes):
        dim = layouts[0][axis].dim
        outer = any(one[i].dim == dim for one in layouts for i in range(axis) if i in kept)
        if dim is None or outer or sizes[dim] % size or any(one[axis].dim != dim for one in layouts):
            kept.append(axis)
        else:
            sizes[dim] //= size
    return (tuple(kept), tuple(sizes)) if kept else ((0,), shape)


@CACHES.memoized(maxsize=1 << 10)
def submesh(mesh: Mesh, axes: tuple[int, ...]) -> Mesh:
    """The mesh that one rank sees along some of the axes."""
    names = {mesh.names[axis] for axis in axes}
    ranks = [
        rank
        for position, rank in enumerate(mesh.ranks)
        if not any(place for axis, place in enumerate(mesh.coordinates(position)) if axis not in axes)
    ]
    flat = tuple(axis for axis in mesh.flat if names.issuperset(axis.name.split(FLAT)))
    return Mesh(tuple(mesh.axes[axis] for axis in axes), mesh.device, tuple(ranks), flat)
