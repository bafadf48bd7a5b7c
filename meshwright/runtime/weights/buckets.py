"""One collective for several parameters: their pieces side by side on the way, apart again after it.

What goes in and what comes out lie in one piece of memory each. `Shape` says where each parameter stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from meshwright.layout import collectives as ops
from meshwright.price.buckets import Bucket

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A bucket whose parameters have these shapes on one rank: pieces, of sharded ones, or the whole."""

    bucket: Bucket
    local: tuple[Sizes, ...]

    @property
    def counts(self) -> list[int]:
        return [prod(sizes) for sizes in self.local]

    @property
    def whole(self) -> list[Sizes]:
        """The shapes of the ranks' pieces put together."""
        return [
            sizes if dim < 0 else (*sizes[:dim], sizes[dim] * self.bucket.size, *sizes[dim + 1 :])
            for sizes, dim in zip(self.local, self.bucket.dims, strict=True)
        ]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Each parameter's local part of a flat tensor of all."""
        parts = flat.split_with_sizes(self.counts)
        return {name: part.view(sizes) for name, part, sizes in zip(self.bucket.names, parts, self.local, strict=True)}


class Scratch:
    """Memory that collectives of one order use in turn. It lasts: fresh pages cost as much as copying to them."""

    def __init__(self) -> None:
        self._held: dict[torch.dtype, Tensor] = {}

    def take(self, count: int, like: Tensor) -> Tensor:
        found = self._held.get(like.dtype)
        if found is None or found.numel() < count:
            found = self._held[like.dtype] = torch.empty(count, dtype=like.dtype, device=like.device)
        return found[:count]


def gather(shape: Shape, flat: Tensor, out: Tensor, scratch: Scratch) -> dict[str, Tensor]:
    """All ranks' pieces, which stand side by side in `flat`, as whole parameters in `out`."""
    bucket, counts = shape.bucket, shape.counts
    size = bucket.size
    parts = [part.view(size, -1) for part in out.split_with_sizes([count * size for count in counts])]
    if bucket.dims == (0,):
        ops.gather_into(out.view(size, -1), flat, bucket.axis)
    else:
        every = ops.gather_into(scratch.take(out.numel(), flat).view(size, -1), flat, bucket.axis)
        pieces = every.split_with_sizes(counts, 1)
        for part, piece, sizes, dim in zip(parts, pieces, shape.local, bucket.dims, strict=True):
            if dim == 0:
                part.copy_(piece)
            else:
                _pieces(part.view(-1), sizes, dim, size).copy_(piece.view(size, *sizes))
    wholes = zip(bucket.names, parts, shape.whole, strict=True)
    return {name: part.view(sizes) for name, part, sizes in wholes}


def scatter(shape: Shape, given: Sequence[Tensor], out: Tensor, scratch: Scratch) -> None:
    """The sum over ranks of whole gradients; this rank's pieces of them stand side by side in `out`."""
    bucket = shape.bucket
    size = bucket.size
    every = scratch.take(out.numel() * size, out).view(size, -1)
    parts = every.split_with_sizes(shape.counts, 1)
    for part, tensor, sizes, dim in zip(parts, given, shape.local, bucket.dims, strict=True):
        part.view(size, *sizes).copy_(tensor.reshape(*sizes[:dim], size, *sizes[dim:]).movedim(dim, 0))
    ops.scatter_into(out, every, bucket.axis)


def add_up(shape: Shape, given: Sequence[Tensor], out: Tensor) -> None:
    """The sum over ranks of gradients, side by side in `out`."""
    for part, tensor in zip(out.split_with_sizes(shape.counts), given, strict=True):
        part.view(tensor.shape).copy_(tensor)
    ops.sum_in_place(out, shape.bucket.axis)


def reduce(shape: Shape, given: Mapping[str, Tensor], out: Tensor, scratch: Scratch) -> None:
    """Gradients of the bucket, in any dtype, to their storage layout in `out`."""
    ordered = [given[name] for name in shape.bucket.names]
    if shape.bucket.kind == "reduce_scatter":
        scatter(shape, ordered, out, scratch)
    else:
        add_up(shape, ordered, out)


def _pieces(flat: Tensor, sizes: Sizes, dim: int, size: int) -> Tensor:
    """Memory of a whole parameter as the ranks' pieces of it, first dim the ranks'."""
    return flat.view(*sizes[:dim], size, *sizes[dim:]).movedim(dim, 0)
