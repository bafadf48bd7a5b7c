"""Marks of Python values: two states of an object can be told apart by them, without a copy of it."""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from itertools import count
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from meshwright.capture.tracing.code import is_library

DEEPEST, MOST_ITEMS = 5, 2000
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_CODE = (FunctionType, BuiltinFunctionType)


def _place(iterator: Iterator[Any]) -> str:
    """How far an iterator has come, where Python tells."""
    if isinstance(iterator, GeneratorType):
        frame = iterator.gi_frame
        return "" if frame is None else repr((frame.f_lasti, frame.f_locals))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return repr(iterator.__reduce__())
    except TypeError:
        return ""


class Marker:
    """Writes a value down so that two of its states can be compared; each object once."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.held: list[Any] = []

    def marks(self, path: str, value: Any, depth: int) -> Iterator[tuple[str, object]]:
        if isinstance(value, PLAIN):
            yield path, value
            return
        inner = self._inside(value)
        self.held.append(value)
        if isinstance(inner, str):
            yield path, ("is", id(value), inner)
            return
        yield path, ("is", id(value))
        if id(value) in self.seen or depth >= DEEPEST:
            return
        self.seen.add(id(value))
        yield f"{path} (length)", len(inner)
        for key, item in list(inner.items())[:MOST_ITEMS]:
            yield from self.marks(f"{path}[{key!r}]" if isinstance(key, PLAIN) else f"{path}[...]", item, depth + 1)

    def _inside(self, value: Any) -> Mapping[Any, Any] | str:
        """What an object consists of, or how it is told from its other states."""
        if isinstance(value, random.Random):
            return "" if isinstance(value, random.SystemRandom) else repr(value.getstate())
        if isinstance(value, np.random.Generator | np.random.RandomState):
            bits = value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator
            return repr(bits.state)
        if isinstance(value, np.ndarray):
            return repr(hash(value.tobytes()))
        if isinstance(value, count):
            return repr(value)
        if isinstance(value, Iterator) and not hasattr(value, "__dict__"):
            return _place(value)
        if isinstance(value, Mapping):
            return value
        if isinstance(value, list | tuple | deque):
            return dict(enumerate(value))
        if isinstance(value, set | frozenset):
            return {"": repr(sorted(map(repr, value)))}
        return parts_of(value)


def parts_of(value: Any) -> Mapping[str, Any] | str:
    """What an object holds: its attributes, or what a bound function is bound to. Text of what is not examined."""
    if isinstance(value, partial):
        return {"function": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, MethodType):
        return {"self": value.__self__}
    if isinstance(value, ContextVar):
        return {"value": value.get(None)}
    if isinstance(value, (Tensor, nn.Module, type, ModuleType, *_CODE)):
        return ""
    own = not is_library(type(value).__module__)
    if not own and (callable(value) or not hasattr(value, "__dict__")):
        return ""
    return {**(vars(value) if hasattr(value, "__dict__") else {}), **(_slots(value) if own else {})}


def _slots(value: Any) -> dict[str, Any]:
    names = [name for kind in type(value).__mro__ for name in _listed(vars(kind).get("__slots__", ()))]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _listed(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
