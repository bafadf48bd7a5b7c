"""The code that a model and its loss are made of: functions, the modules they are in, what these hold besides."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from types import FunctionType, ModuleType
from typing import Any

from torch import nn


def classes_of(model: nn.Module) -> set[type]:
    """Classes of the model's modules, torch's own left out."""
    return {kind for module in model.modules() for kind in type(module).__mro__ if not _is_torch(kind)}


def functions_of(model: nn.Module, loss: Callable[..., Any] | None) -> list[FunctionType]:
    """Methods of its classes, and the loss where that is a function."""
    found = [held for kind in classes_of(model) for held in vars(kind).values() if isinstance(held, FunctionType)]
    return [*found, loss] if isinstance(loss, FunctionType) else found


def modules_of(model: nn.Module, loss: Callable[..., Any] | None) -> list[ModuleType]:
    """The Python modules that these functions are in."""
    names = {function.__module__ for function in functions_of(model, loss)}
    return [sys.modules[name] for name in names if name in sys.modules]


def around(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Variables around a function, with their names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not yet assigned
            continue


@contextmanager
def forgotten_caches(model: nn.Module, loss: Callable[..., Any] | None) -> Iterator[None]:
    """Functions under `lru_cache` compute anew inside, and keep nothing of what they gave there."""
    held = [value for module in modules_of(model, loss) for value in vars(module).values()]
    held += [value for kind in classes_of(model) for value in vars(kind).values()]
    held += [value for function in functions_of(model, loss) for _, value in around(function)]
    caches = [getattr(value, "__func__", value) for value in held]
    caches = [value for value in caches if isinstance(value, _lru_cache_wrapper)]
    for cache in caches:
        cache.cache_clear()
    try:
        yield
    finally:
        for cache in caches:
            cache.cache_clear()


def _is_torch(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] == "torch"
