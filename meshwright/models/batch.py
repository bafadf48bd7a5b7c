"""Which part of a batch a model takes, by which names, and which part is for the loss alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
TARGET = "target"


def parameters_of(function: nn.Module | Callable[..., Any]) -> list[inspect.Parameter]:
    """Of a module those of its forward; none where a function is written in C."""
    try:
        return list(inspect.signature(getattr(function, "forward", function)).parameters.values())
    except (TypeError, ValueError):
        return []


def batch_names(model: nn.Module, loss: Callable[..., Any] | None, count: int) -> list[str]:
    """Names for the first `count` entries of a batch: the model's own, then the loss function's after its first."""
    names = [parameter.name for parameter in parameters_of(model) if parameter.kind in _NAMED]
    if loss is not None and count > len(names):
        wanted = [parameter.name for parameter in parameters_of(loss)[1:] if parameter.kind in _NAMED]
        for index in range(count - len(names)):
            name = wanted[index] if index < len(wanted) else TARGET
            names.append(name if name not in names else f"{TARGET}_{len(names)}")
    return names[:count]


def for_the_loss(model: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """The entries of a batch that the model does not take."""
    parameters = parameters_of(model)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return ()
    known = {parameter.name for parameter in parameters}
    return tuple(name for name in names if name not in known)
