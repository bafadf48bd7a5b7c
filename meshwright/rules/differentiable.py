"""Steps of lowerings with collectives inside and a gradient of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.layout.collectives import all_gather, all_reduce, all_reduce_max, axis_index, reduce_scatter


def sharded_class_losses(logits: Tensor, targets: Tensor, axis: str, width: int) -> Tensor:
    """Cross-entropy per row with the classes sharded over `axis`, `width` a rank; nothing is gathered.

    The losses are single precision or wider, whatever the logits are: they are about to be summed.
    By hand, because autograd would keep the shifted logits besides the probabilities: twice the largest tensor.
    """
    return _ClassLosses.apply(logits, targets, axis, width)  # type: ignore[no-any-return, no-untyped-call]


def gather_for_all(x: Tensor, dim: int, axis: str, size: int) -> Tensor:
    """`S -> R`: all parts on every rank; ranks use them differently, so gradients are summed and scattered."""
    return _Gather.apply(x, dim, axis, size)  # type: ignore[no-any-return, no-untyped-call]


class _ClassLosses(torch.autograd.Function):
    """log(sum of exponentials) less the target's logit; its gradient is the probabilities less the target's one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, axis: str, width: int) -> Tensor:
        dim = 0 if logits.dim() == 1 else 1
        ctx.classes = logits.shape[dim]
        if not ctx.classes:  # a rank whose part of them is empty has one that nobody takes
            shape = [*logits.shape[:dim], 1, *logits.shape[dim + 1 :]]
            logits = logits.new_full(shape, torch.finfo(logits.dtype).min)
        wide = torch.promote_types(logits.dtype, torch.float32)
        local = targets - axis_index(axis) * width
        here = (local >= 0) & (local < ctx.classes)
        index = local.where(here, 0).unsqueeze(dim)
        shifted = (logits - all_reduce_max(logits.amax(dim), axis).unsqueeze(dim)).to(wide)
        picked = shifted.gather(dim, index).squeeze(dim).where(here, 0)
        exponentials = shifted.exp()
        total, target = all_reduce(torch.stack([exponentials.sum(dim), picked]), axis).unbind()
        ctx.dim = dim
        ctx.save_for_backward((exponentials / total.unsqueeze(dim)).to(logits.dtype), index, here)
        losses: Tensor = total.log() - target
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities, index, here = ctx.saved_tensors
        gradient = gradients[0].to(probabilities.dtype).unsqueeze(ctx.dim)
        whole = probabilities * gradient
        found = whole.scatter_add(ctx.dim, index, -(gradient * here.unsqueeze(ctx.dim)))
        return found if ctx.classes else found.narrow(ctx.dim, 0, 0), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, axis: str, size: int) -> Tensor:
        ctx.place = (dim, axis, size)
        result: Tensor = all_gather(x, dim, axis, size)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        dim, axis, size = ctx.place
        return reduce_scatter(gradients[0].contiguous(), dim, axis, size), None, None, None
