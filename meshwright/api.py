"""The public entry to planning: a model, a batch, a cluster and a memory limit in; a Plan out."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from meshwright.planner import plan_model
from meshwright.profile import profile_step as profile
from meshwright.runtime.fail import tell_uncaught

P = ParamSpec("P")
R = TypeVar("R")


def _with_short_errors(function: Callable[P, R]) -> Callable[P, R]:
    """The function, after which ranks of a job print errors of ours as one message (`runtime.fail`)."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        tell_uncaught()
        return function(*args, **kwargs)

    return call


plan = _with_short_errors(plan_model.plan)

__all__ = ["plan", "profile"]
