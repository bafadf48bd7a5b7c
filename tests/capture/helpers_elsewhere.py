"""A helper of a model in a module of its own."""

from __future__ import annotations

from torch import Tensor


def is_plain(x: object) -> bool:
    return type(x) is Tensor
