"""One collective for several parameters: their pieces side by side on the way, apart again after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from meshwright.layout import collectives as ops
from meshwright.price.buckets import Bucket


def move(bucket: Bucket, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The bucket's parameters (or gradients) after its collective, by name."""
    given = [tensors[name] for name in bucket.names]
    found = {"all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter}[bucket.kind](
        bucket, given
    )
    return dict(zip(bucket.names, found, strict=True))


def _all_reduce(bucket: Bucket, given: Sequence[Tensor]) -> list[Tensor]:
    if len(given) == 1:
        return [ops.all_reduce(given[0], bucket.axis)]
    summed = ops.sum_in_place(torch.cat([tensor.reshape(-1) for tensor in given]), bucket.axis)
    parts = torch.split(summed, [tensor.numel() for tensor in given])
    return [part.view(tensor.shape) for part, tensor in zip(parts, given, strict=True)]


def _all_gather(bucket: Bucket, given: Sequence[Tensor]) -> list[Tensor]:
    if len(given) == 1:
        return [ops.all_gather(given[0], bucket.dims[0], bucket.axis, bucket.size)]
    flat = torch.cat([tensor.reshape(-1) for tensor in given])[None]
    parts = ops.all_gather(flat, 0, bucket.axis, bucket.size).split([tensor.numel() for tensor in given], 1)
    found = []
    for part, tensor, dim in zip(parts, given, bucket.dims, strict=True):
        stacked = part.reshape(bucket.size, *tensor.shape)
        found.append(stacked.movedim(0, dim).flatten(dim, dim + 1).contiguous())
    return found


def _reduce_scatter(bucket: Bucket, given: Sequence[Tensor]) -> list[Tensor]:
    if len(given) == 1:
        return [ops.reduce_scatter(given[0], bucket.dims[0], bucket.axis, bucket.size)]
    flat, shapes = [], []
    for tensor, dim in zip(given, bucket.dims, strict=True):
        shape = [*tensor.shape[:dim], bucket.size, tensor.shape[dim] // bucket.size, *tensor.shape[dim + 1 :]]
        flat.append(tensor.reshape(shape).movedim(dim, 0).reshape(bucket.size, -1))
        shapes.append([*shape[:dim], *shape[dim + 1 :]])
    summed = ops.reduce_scatter(torch.cat(flat, 1), 0, bucket.axis, bucket.size).view(-1)
    parts = summed.split([part.shape[1] for part in flat])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
