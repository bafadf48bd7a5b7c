"""Functional forms of the few ops that write to a buffer: what a Program holds instead of them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Training-mode BatchNorm: the result and the running statistics as they are afterwards."""
    mean, var = mean.clone(), var.clone()
    return F.batch_norm(x, mean, var, weight, bias, True, momentum, eps), mean, var
