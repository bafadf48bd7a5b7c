"""A function with a backward of its own, importable by name as a Program needs it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class StraightThrough(torch.autograd.Function):
    """Rounds; its backward pretends it did not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient
