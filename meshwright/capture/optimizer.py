"""The optimizers that are planned for, and what each keeps of a parameter."""

from __future__ import annotations

from meshwright.errors import PlanError

STATES = {"adamw": 2, "momentum": 1, "sgd": 0}
"""Tensors of optimizer state per parameter; each step reads and writes them, reads the gradient."""


def check_optimizer(name: str) -> None:
    if name not in STATES:
        raise PlanError(f"optimizer {name!r}", f"one of {', '.join(STATES)}", "name one of these")
