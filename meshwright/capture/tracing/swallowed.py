"""Refusals that a forward's own `try` would swallow: it would go on with what it keeps for errors, which eager never
meets. They are noted where they are raised, and raised again once the forward has ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from meshwright.capture.tracing.traps import stand_ins
from meshwright.torch_compat import has_unbacked_symbol

_Error = TypeVar("_Error", bound=Exception)
_NOTED: ContextVar[list[Exception] | None] = ContextVar("noted", default=None)


@contextmanager
def raised_again() -> Iterator[None]:
    """Raises the first refusal that was noted inside, if nothing else is raised."""
    noted: list[Exception] = []
    token = _NOTED.set(noted)
    try:
        yield
    finally:
        _NOTED.reset(token)
    if noted:
        raise noted[0]


@contextmanager
def noted_numbers() -> Iterator[None]:
    """Notes errors of numbers that stand for a tensor's value (`x.max().item() > 1`), which raise where code of users
    asks what they are. Torch asks too, and handles the answer."""
    made = {
        (kind, name): _noting(vars(kind)[name])
        for kind in (torch.SymInt, torch.SymFloat, torch.SymBool)
        for name in ("__bool__", "__int__", "__float__", "__index__", "__hash__")
        if callable(vars(kind).get(name))
    }
    with stand_ins(made, ()):
        yield


def _noting(ask: Callable[..., Any]) -> Callable[..., Any]:
    def asked(number: Any) -> Any:
        try:
            return ask(number)
        except TypeError as error:  # sizes of the batch cannot be hashed: who handles that goes on as eager does
            raise (noted(error) if has_unbacked_symbol(number) else error) from None
        except Exception as error:
            user = not str(sys._getframe(1).f_globals.get("__name__", "")).startswith(("torch.", "sympy."))
            raise (noted(error) if user else error) from None

    return asked


def noted(error: _Error) -> _Error:
    """The error, which is raised again where a forward swallows it."""
    if (found := _NOTED.get()) is not None:
        found.append(error)
    return error
