"""Tensors that the cases of rules are given: with gradient unless said otherwise."""

from __future__ import annotations

import torch
from torch import Tensor


def f(*shape: int) -> Tensor:
    """Doubles between 0.2 and 0.8, with gradient: inside the domain of nearly every function."""
    return torch.rand(shape, dtype=torch.float64).mul(0.6).add(0.2).requires_grad_()


def plain(*shape: int) -> Tensor:
    return f(*shape).detach()


def ints(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


def bools(*shape: int) -> Tensor:
    return torch.rand(shape) > 0.5


def distinct(*shape: int) -> Tensor:
    """Doubles without ties, for ops that pick."""
    count = torch.Size(shape).numel()
    return torch.randperm(count, dtype=torch.float64).reshape(shape).div(count).requires_grad_()


def signs(*shape: int) -> Tensor:
    return bools(*shape).double().mul(2).sub(1)
