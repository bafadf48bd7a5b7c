"""RMSNorm as a GPU runs it, for plans made where there is none: one op that hands out the norm and its statistics.

On CPU fakes torch writes the norm out in a dozen ops; a GPU has a kernel for it, and its trace has other storages.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op


@custom_op("meshwright::gpu_rms_norm", mutates_args=())
def gpu_rms_norm(x: Tensor, weight: Tensor | None, dims: int, eps: float) -> tuple[Tensor, Tensor]:
    """The norm over the last `dims` dims, and one over each root mean square in single precision."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    over = tuple(range(-dims, 0))
    rstd = torch.rsqrt(wide.pow(2).mean(over, keepdim=True) + eps)
    found = wide * rstd if weight is None else wide * rstd * weight
    return found.to(x.dtype), rstd


@custom_op("meshwright::gpu_rms_norm_backward", mutates_args=())
def gpu_rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, dims: int
) -> tuple[Tensor, Tensor]:
    """Gradients of the operand and of the weight; the latter is empty where there is none."""
    wide, back = x.to(rstd.dtype), gradient.to(rstd.dtype)
    over = tuple(range(-dims, 0))
    normed = wide * rstd
    scaled = back if weight is None else back * weight
    found = rstd * (scaled - normed * (scaled * normed).mean(over, keepdim=True))
    if weight is None:
        return found.to(x.dtype), x.new_empty(0)
    return found.to(x.dtype), (back * normed).sum(tuple(range(x.dim() - dims))).to(weight.dtype)


@gpu_rms_norm.register_fake
def _(x: Tensor, weight: Tensor | None, dims: int, eps: float) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[: x.dim() - dims], *(1 for _ in range(dims)))
    return torch.empty_like(x), x.new_empty(shape, dtype=torch.promote_types(x.dtype, torch.float32))


@gpu_rms_norm_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0) if weight is None else torch.empty_like(weight)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, dims: int, eps: float) -> Tensor:
        found, rstd = gpu_rms_norm(x, weight, dims, eps)
        ctx.dims, ctx.weighted = dims, weight is not None
        ctx.save_for_backward(x, rstd, *([] if weight is None else [weight]))
        return found  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, rstd, *weight = ctx.saved_tensors
        found, of_weight = gpu_rms_norm_backward(gradients[0], x, weight[0] if weight else None, rstd, ctx.dims)
        return found, of_weight if ctx.weighted else None, None, None


def rms_norm_as_on_gpu(x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> Tensor:
    least = torch.finfo(x.dtype).eps if eps is None else eps
    return _Norm.apply(x, weight, len(shape), least)  # type: ignore[no-any-return, no-untyped-call]
