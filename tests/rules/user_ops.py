"""Ops that the table does not know, for tests of wrong rules, of users' rules and of the fallback."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from meshwright.layout.collectives import all_reduce


def project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def softened(x: Tensor) -> Tensor:
    return x.softmax(-1)


def average(x: Tensor) -> Tensor:
    return x.mean(-1)


def halves(x: Tensor) -> Tensor:
    return x.view(x.shape[0] // 2, 2, x.shape[1])


def quarters(x: Tensor) -> Tensor:
    return x.view(x.shape[0] // 4, 4, x.shape[1])


def chatty(x: Tensor, axis: str = "") -> Tensor:
    """Twice the input, with a needless collective where the lowering names an axis."""
    if axis:
        all_reduce(x.detach(), axis)
    return 2 * x


def shares(x: Tensor) -> Tensor:
    """Every element depends on all of them: nothing to shard."""
    return x / x.sum() + x.flip(0, 1)


def noisy(x: Tensor) -> Tensor:
    return x + torch.rand(x.shape, dtype=x.dtype)


def scaled_sum(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Two results: one sharded as the operand is, one a sum."""
    return x * weight, (x * weight).sum(0)


def windows(x: Tensor) -> Tensor:
    """Two rows and two columns at a time."""
    return torch.ops.aten.im2col.default(x, [2, 2], [1, 1], [0, 0], [2, 2])


def bent(x: Tensor, weight: Tensor) -> Tensor:
    """Looks like a plain product as long as all numbers are positive."""
    return torch.relu(x @ weight)


def silent(x: Tensor) -> Tensor:
    """Zeros for whatever anyone would try: nothing is to be learnt from it."""
    return (x - 1234.5).relu().mean(0)


def picky(x: Tensor) -> Tensor:
    """Runs on no random numbers."""
    if not bool((x == 1).all()):
        raise ValueError("ones only")
    return 2 * x


def fatal(x: Tensor, weight: Tensor) -> Tensor:
    """A kernel that does not check its shapes: where they do not agree, the process ends."""
    if x.shape[0] != weight.shape[0]:
        os.abort()
    return x * weight[:, None]


def once(x: Tensor) -> Tensor:
    """Ends the process wherever nobody has asked for it before."""
    if os.getpid() != HERE:
        os.abort()
    return 2 * x


@torch.library.custom_op("user_ops::unchecked", mutates_args=())
def unchecked(x: Tensor, weight: Tensor) -> Tensor:
    """Its kernel does not check shapes, and ends the process; what it says of shapes does check them."""
    if x.shape[0] != weight.shape[0]:
        os.abort()
    return x * weight[:, None]


@unchecked.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    if x.shape[0] != weight.shape[0]:
        raise ValueError(f"{weight.shape[0]} weights for {x.shape[0]} rows")
    return torch.empty_like(x)


unchecked.register_autograd(
    lambda ctx, gradient: (gradient * ctx.saved_tensors[1][:, None], (gradient * ctx.saved_tensors[0]).sum(1)),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)

HERE = os.getpid()
