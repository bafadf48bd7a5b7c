"""Every family as a real model and as a Program."""

from __future__ import annotations

from functools import cache

from references import FAMILIES, real_model
from torch import Tensor, nn

from meshwright.capture import Program, capture


def small_family(name: str, batch: int = 4) -> tuple[nn.Module, dict[str, Tensor]]:
    return real_model(FAMILIES[name], batch)


@cache
def captured(name: str) -> Program:
    """The family's Program at a batch of 4; captured once, as a Program never changes."""
    return capture(*small_family(name))
