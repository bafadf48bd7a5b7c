"""Norms and softmax over a dim that is sharded: each rank has its part of every row, and a few numbers per row travel.

By hand rather than through autograd, so that backward is one collective and what is kept is one operand or result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.layout.collectives import all_gather, all_reduce, all_reduce_max

Gradients = tuple[Tensor | None, ...]


class LayerNorm(torch.autograd.Function):
    """Rows over the last `count` dims, sharded over `axis` into `size` parts; statistics are gathered and merged."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, count: int, eps: float, axis: str, size: int
    ) -> Tensor:
        dims = _last(count)
        wide = x.to(_wide(x))
        own_var, own_mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
        means, variances = all_gather(torch.stack([own_mean, own_var])[None], 0, axis, size).unbind(1)
        mean = means.mean(0)
        deviation = ((variances + (means - mean).square()).mean(0) + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, deviation)
        ctx.place = (count, axis, size, bias is not None)
        return _affine((wide - mean) * deviation, weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        x, weight, mean, deviation = ctx.saved_tensors
        count, axis, size, has_bias = ctx.place
        gradient = gradients[0].to(mean.dtype)
        normal = (x.to(mean.dtype) - mean) * deviation
        scaled = gradient if weight is None else gradient * weight
        sums = torch.stack([scaled.sum(_last(count), keepdim=True), (scaled * normal).sum(_last(count), keepdim=True)])
        first, second = (all_reduce(sums, axis) / _row_length(x, count, size)).unbind()
        back = deviation * (scaled - first - normal * second)
        weight_back = None if weight is None else _over_rows(gradient * normal, count).to(weight.dtype)
        bias_back = _over_rows(gradient, count).to(gradients[0].dtype) if has_bias else None
        return back.to(x.dtype), weight_back, bias_back, None, None, None, None


class RMSNorm(torch.autograd.Function):
    """As LayerNorm without a mean: one number per row, summed forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, count: int, eps: float, axis: str, size: int) -> Tensor:
        wide = x.to(_wide(x))
        squares = all_reduce(wide.square().sum(_last(count), keepdim=True), axis)
        deviation = (squares / _row_length(x, count, size) + eps).rsqrt()
        ctx.save_for_backward(x, weight, deviation)
        ctx.place = (count, axis, size)
        return _affine(wide * deviation, weight, None).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        x, weight, deviation = ctx.saved_tensors
        count, axis, size = ctx.place
        gradient = gradients[0].to(deviation.dtype)
        normal = x.to(deviation.dtype) * deviation
        scaled = gradient if weight is None else gradient * weight
        shared = all_reduce((scaled * normal).sum(_last(count), keepdim=True), axis) / _row_length(x, count, size)
        back = deviation * (scaled - normal * shared)
        weight_back = None if weight is None else _over_rows(gradient * normal, count).to(weight.dtype)
        return back.to(x.dtype), weight_back, None, None, None, None


class Softmax(torch.autograd.Function):
    """Probabilities (or their logarithms) along `dim`, sharded over `axis`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, log: bool, axis: str) -> Tensor:
        shifted = (x - all_reduce_max(x.amax(dim, keepdim=True), axis)).to(_wide(x))
        exponentials = shifted.exp()
        total = all_reduce(exponentials.sum(dim, keepdim=True), axis)
        result: Tensor = (shifted - total.log() if log else exponentials / total).to(x.dtype)
        ctx.save_for_backward(result)
        ctx.place = (dim, log, axis)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        (result,) = ctx.saved_tensors
        dim, log, axis = ctx.place
        gradient, made = gradients[0].to(_wide(result)), result.to(_wide(result))
        total = all_reduce((gradient if log else gradient * made).sum(dim, keepdim=True), axis)
        back = gradient - made.exp() * total if log else made * (gradient - total)
        return back.to(result.dtype), None, None, None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _last(count: int) -> list[int]:
    return list(range(-count, 0))


def _row_length(x: Tensor, count: int, size: int) -> int:
    return x.shape[-count:].numel() * size


def _over_rows(x: Tensor, count: int) -> Tensor:
    return x.sum(list(range(x.dim() - count))) if x.dim() > count else x


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias
