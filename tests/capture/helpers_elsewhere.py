"""A helper of a model in a module of its own."""

from __future__ import annotations

from torch import Tensor

CALLS, SCALE = 0, 1.0


def counted(x: Tensor) -> Tensor:
    global CALLS
    CALLS += 1
    return x * CALLS


def is_plain(x: object) -> bool:
    return type(x) is Tensor
