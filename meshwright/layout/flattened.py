"""One collective over several mesh axes at once, on this rank's piece of a tensor.

Where all pieces are even, dims are split by the axes that shard them and permuted: no coordinates are needed, so
that a trace is the same on every rank. Uneven pieces are cut one by one, padded to the largest (the first
rank's), sent as equal ones, and trimmed and concatenated where they arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor

from meshwright.cluster.mesh import FLAT, Mesh
from meshwright.layout import collectives as ops
from meshwright.layout.states import Layout, chunk_length
from meshwright.layout.steps import Op


@dataclass(frozen=True, slots=True)
class Place:
    """The tensor's global shape and this rank's coordinates; None when all pieces on the way are even."""

    mesh: Mesh
    shape: tuple[int, ...]
    coordinates: tuple[int, ...] | None

    def local(self, layout: Layout, coordinates: Sequence[int] | None = None) -> tuple[int, ...]:
        """The shape of the piece at some coordinates, this rank's by default."""
        return layout.local_shape(self.shape, self.mesh.sizes, coordinates or self.coordinates)


def padded(x: Tensor, dim: int, length: int) -> Tensor:
    """`x` with zeros after it, so that `dim` has this length."""
    missing = length - x.shape[dim]
    if not missing:
        return x
    return torch.nn.functional.pad(x, [0, 0] * (x.ndim - 1 - dim) + [0, missing])


def trimmed(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The first part of `x` that has this shape, in memory of its own: what reads it may want a view."""
    for dim, length in enumerate(shape):
        if x.shape[dim] != length:
            x = x.narrow(dim, 0, length)
    return x.contiguous()


def run_flattened(op: Op, x: Tensor, before: Layout, after: Layout, place: Place) -> Tensor:
    """`op` over the group of its axes together; `before` and `after` are the layouts around it."""
    group = _Group(op, before, after, place)
    return group.run_even(x) if place.coordinates is None else group.run_uneven(x, place.coordinates)


class _Group:
    """The ranks that differ along the op's axes, in row-major order of their coordinates, outermost axis first."""

    def __init__(self, op: Op, before: Layout, after: Layout, place: Place) -> None:
        self.kind, self.axes, self.sliced, self.place = op.kind, op.axes, op.sliced, place
        self.before, self.after = before, after
        self.sizes = [place.mesh.sizes[i] for i in op.axes]
        self.name, self.size = FLAT.join(place.mesh.names[i] for i in op.axes), prod(self.sizes)

    def run_even(self, x: Tensor) -> Tensor:
        joined = [dim for i in self.axes if (dim := self.before[i].dim) is not None]
        cut = [dim for i in self.axes if (dim := self.after[i].dim) is not None]
        one_dim = len(set(joined)) <= 1 and len(set(cut)) <= 1
        if self.kind == "take_slice":
            x = self._take_even_slices(x)
        elif self.kind == "all_gather" and one_dim:
            x = ops.all_gather(x, joined[0], self.name, self.size)
        elif self.kind == "all_gather":
            x = _interleave(ops.all_gather(x, 0, self.name, self.size), self.sizes, joined)
        elif self.kind == "all_to_all" and one_dim:
            x = ops.all_to_all(x, cut[0], joined[0], self.name, self.size)
        elif self.kind == "all_to_all":
            dealt = ops.all_to_all(_deal(x, self.sizes, cut), 0, 0, self.name, self.size)
            x = _interleave(dealt, self.sizes, joined)
        elif one_dim and not self.sliced:
            x = ops.reduce_scatter(x, cut[0], self.name, self.size)
        else:
            x = ops.reduce_scatter(_deal(self._even_slice(x), self.sizes, cut), 0, self.name, self.size)
        return x

    def _take_even_slices(self, x: Tensor) -> Tensor:
        for i in self.axes:
            x = ops.take_slice(x, self.after[i].dim, self.place.mesh.names[i], self.place.mesh.sizes[i])
        return x

    def _even_slice(self, x: Tensor) -> Tensor:
        """This rank's slice along the sliced axes, also where one of them nests inside another axis of the op."""
        every = sorted(self.axes + self.sliced)
        dims = [dim for i in every if (dim := self.after[i].dim) is not None]
        split, where = _split_dims(x, [self.place.mesh.sizes[i] for i in every], dims)
        length = list(x.shape)
        for i, at, dim in zip(every, where, dims, strict=True):
            if i in self.sliced:
                split = ops.take_slice(split, at, self.place.mesh.names[i], self.place.mesh.sizes[i])
                length[dim] //= self.place.mesh.sizes[i]
        return split.reshape(length)

    def run_uneven(self, x: Tensor, mine: tuple[int, ...]) -> Tensor:
        members = [self._at(mine, at) for at in product(*map(range, self.sizes))]
        if self.kind == "take_slice":
            return self._cut(x, mine).contiguous()
        if self.kind == "all_gather":
            largest = self.place.local(self.before, members[0])
            stacked = ops.all_gather(_padded_to(x, largest), 0, self.name, self.size)
            return self._joined(stacked, members, [self.place.local(self.before, member) for member in members])
        pieces = [self._cut(x, member) for member in members]
        if self.kind == "reduce_scatter":
            # Where an axis that is sliced nests inside, it is not always the first member's that is largest.
            shapes = [self.place.local(self.after, member) for member in members]
            largest = tuple(map(max, zip(*shapes, strict=True)))
            stacked = torch.cat([_padded_to(piece, largest) for piece in pieces])
            return trimmed(ops.reduce_scatter(stacked, 0, self.name, self.size), self.place.local(self.after, mine))
        cut = {self.after[i].dim for i in self.axes}
        first, last = self.place.local(self.before, members[0]), self.place.local(self.after, members[0])
        largest = tuple(last[dim] if dim in cut else length for dim, length in enumerate(first))
        stacked = torch.cat([_padded_to(piece, largest) for piece in pieces])
        received = ops.all_to_all(stacked, 0, 0, self.name, self.size)
        own = self.place.local(self.after, mine)
        theirs = [self.place.local(self.before, member) for member in members]
        arrived = [tuple(own[dim] if dim in cut else n for dim, n in enumerate(shape)) for shape in theirs]
        return self._joined(received, members, arrived)

    def _at(self, mine: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        """Coordinates of the group's member at these places of the op's axes."""
        coordinates = list(mine)
        for axis, place in zip(self.axes, at, strict=True):
            coordinates[axis] = place
        return tuple(coordinates)

    def _cut(self, x: Tensor, member: tuple[int, ...]) -> Tensor:
        """What `member` gets of `x`: along each axis, outermost first, its chunk of what is left."""
        for i in sorted(self.axes + self.sliced):
            dim, size = self.after[i].dim, self.place.mesh.sizes[i]
            assert dim is not None
            start = min(member[i] * -(-x.shape[dim] // size), x.shape[dim])
            x = x.narrow(dim, start, chunk_length(x.shape[dim], size, member[i]))
        return x

    def _joined(self, stacked: Tensor, members: list[tuple[int, ...]], shapes: list[tuple[int, ...]]) -> Tensor:
        """Padded pieces of all members, stacked on dim 0 in rank order, put together along each axis's own dim."""
        length = stacked.shape[0] // len(members)
        pieces = [trimmed(stacked.narrow(0, k * length, length), shape) for k, shape in enumerate(shapes)]
        for axis, size in zip(reversed(self.axes), reversed(self.sizes), strict=True):
            dim = self.before[axis].dim
            assert dim is not None
            pieces = [torch.cat(pieces[k : k + size], dim) for k in range(0, len(pieces), size)]
        return pieces[0]


def _padded_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    for dim, length in enumerate(shape):
        x = padded(x, dim, length)
    return x


def _interleave(stacked: Tensor, sizes: list[int], dims: list[int]) -> Tensor:
    """Pieces of a flattened group, stacked on dim 0 in rank order, put together along each axis's own dim."""
    n, local = len(sizes), [stacked.shape[0] // prod(sizes), *stacked.shape[1:]]
    order: list[int] = []
    for dim in range(len(local)):
        order += [i for i in range(n) if dims[i] == dim] + [n + dim]
    shape = [length * prod(sizes[i] for i in range(n) if dims[i] == dim) for dim, length in enumerate(local)]
    return stacked.reshape(*sizes, *local).permute(order).reshape(shape)


def _split_dims(x: Tensor, sizes: list[int], dims: list[int]) -> tuple[Tensor, list[int]]:
    """`x` with each dim split by the axes that shard it, outermost first; and where each axis now is."""
    split: list[int] = []
    where = [0] * len(sizes)
    for dim, length in enumerate(x.shape):
        for i in (i for i in range(len(sizes)) if dims[i] == dim):
            where[i] = len(split)
            split.append(sizes[i])
            length //= sizes[i]
        split.append(length)
    return x.reshape(split), where


def _deal(x: Tensor, sizes: list[int], dims: list[int]) -> Tensor:
    """The inverse of `_interleave`: cut each dim by its axes and stack the pieces on dim 0 in rank order."""
    split, where = _split_dims(x, sizes, dims)
    rest = [at for at in range(split.ndim) if at not in where]
    local = [split.shape[at] for at in rest]
    return split.permute(where + rest).reshape([prod(sizes) * local[0], *local[1:]])
