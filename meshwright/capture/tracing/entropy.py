"""Random numbers from the operating system, which a captured forward would draw once and then repeat.

They have no state that could be looked at before and after (see `state`), so the draw itself is refused.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FrameType, ModuleType
from typing import Any

from meshwright.capture.tracing.lines import own_line
from meshwright.capture.tracing.swallowed import noted
from meshwright.capture.tracing.traps import stand_ins
from meshwright.errors import CaptureError

_PASSED_ON = (frozenset({"numpy"}) | sys.stdlib_module_names) - {"__main__"}
"""Whose draws are their caller's: `secrets`, `uuid` and `numpy.random.default_rng` read the same bytes."""
_TRUSTED = frozenset({"torch", "meshwright", "transformers", "sympy"})
_ONCE = frozenset({"importlib", "tempfile"})
"""Modules are imported once in eager, too; names of temporary files are no numbers of a forward."""


@contextmanager
def refused_entropy(modules: Iterable[ModuleType]) -> Iterator[list[str]]:
    """modules: of the model's own code, which may hold `urandom` under names of their own. Yields `uuid` where names
    were drawn from it: these are let be unless the forward computes with them, as with a clock (see `clock`)."""
    thread, named = get_ident(), list[str]()

    def refused(what: str, drawn: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            if get_ident() == thread and (what != SEED or _is_unseeded(args, kwargs)) and (user := _user()):
                if sys._getframe(1).f_globals.get("__name__") != "uuid":
                    raise noted(_refusal(what, user))
                named.append("uuid")
            return drawn(*args, **kwargs)

        return draw

    made: dict[tuple[Any, str], Any] = {
        (os, "urandom"): refused(SYSTEM, os.urandom),
        (random, "_urandom"): refused(SYSTEM, os.urandom),
        (random.Random, "seed"): refused(SEED, random.Random.seed),
    }
    with stand_ins(made, modules):
        yield named


SYSTEM = "`os.urandom` (or `secrets`, an unseeded generator of numpy)"
SEED = "an unseeded `random.Random()`"


def _is_unseeded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """args: of `random.Random.seed`, itself included."""
    return (args[1] if len(args) > 1 else kwargs.get("a")) is None


def _user() -> FrameType | None:
    """The innermost caller that draws for itself, where that is code of the user's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = _package(frame)
        if name in _ONCE or name in _TRUSTED:
            return None
        if name not in _PASSED_ON:
            return None if _is_imported(frame) else frame
        frame = frame.f_back
    return None


def _is_imported(frame: FrameType | None) -> bool:
    """Whether a frame is of a module that the forward imports."""
    while frame is not None and (name := _package(frame)) != "meshwright":
        if name == "importlib":
            return True
        frame = frame.f_back
    return False


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _refusal(what: str, user: FrameType) -> CaptureError:
    return CaptureError(
        f"the forward draws random numbers from {what}, which would be the same in every step, at "
        f"{own_line(traceback.extract_stack(user, limit=1))}",
        "random numbers from torch: torch.rand, torch.randn, torch.bernoulli, dropout",
        "draw them with torch, or outside the model, as an entry of the batch",
    )
