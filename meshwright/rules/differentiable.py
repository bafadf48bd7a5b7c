"""The two collectives that lowerings differentiate through; conversions between ops have their own in layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.layout.collectives import all_gather, all_reduce, reduce_scatter


def sum_over(x: Tensor, axis: str) -> Tensor:
    """`P -> I`: the sum on every rank; its gradient, the same on every rank, is each part's gradient."""
    return _Sum.apply(x, axis)  # type: ignore[no-any-return, no-untyped-call]


def gather_for_all(x: Tensor, dim: int, axis: str, size: int) -> Tensor:
    """`S -> R`: all parts on every rank; ranks use them differently, so gradients are summed and scattered."""
    return _Gather.apply(x, dim, axis, size)  # type: ignore[no-any-return, no-untyped-call]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: str) -> Tensor:
        result: Tensor = all_reduce(x, axis)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, axis: str, size: int) -> Tensor:
        ctx.place = (dim, axis, size)
        result: Tensor = all_gather(x, dim, axis, size)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        dim, axis, size = ctx.place
        return reduce_scatter(grad.contiguous(), dim, axis, size), None, None, None
