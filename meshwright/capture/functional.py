"""What a Program holds where no operator says it: functional BatchNorm, and constants."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BATCH_NORM, CONSTANT = f"{__name__}:batch_norm", f"{__name__}:constant"


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
    training: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNorm: the result and the running statistics as they are afterwards, which only training changes."""
    if training:
        mean, var = mean.clone(), var.clone()
    return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps), mean, var


def constant(numbers: tuple[float, ...], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor that the model makes from numbers of its own."""
    return torch.tensor(numbers, dtype=dtype, device=device).reshape(shape)
