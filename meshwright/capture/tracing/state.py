"""What a forward remembers in Python: attributes, lists, counters, generators of random numbers.

A Program holds tensors alone. Re-assigned buffers become updates of the Program; whatever else a forward changes is
frozen at capture, so it is looked at before and after tracing, and judged by tracing once more (see `capture`).
"""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import FunctionType, GeneratorType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from meshwright.capture.tracing.code import around, classes_of, functions_of
from meshwright.errors import CaptureError
from meshwright.torch_compat import own_buffers

DEEPEST, MOST_ITEMS = 5, 2000
MODULE_STATE = frozenset(vars(nn.Module())) - {"training"}
MODULE_STATE |= {"_flat_weights", "_flat_weight_refs"}  # recurrent layers of torch list their weights anew
MODULE_STATE |= {"_output_capturing_hooks_installed"}  # transformers does so once, when outputs are first asked for
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_KEPT = (*(kind for kind in _PLAIN if kind is not type(None)), list, dict, set, deque, random.Random)
_NUMBERS = (bool, int, float, complex, str, bytes)
Key = tuple[str, str]
"""A module's path and an attribute of it; of what is outside the model, ("", a name)."""


@dataclass(slots=True)
class State:
    """Attributes of a model and of its loss, as they were. `held` keeps what is compared by identity alive."""

    attributes: dict[Key, Any]
    marks: dict[Key, dict[str, object]]
    held: list[Any]
    randoms: dict[str, str]


@dataclass(slots=True)
class Changes:
    """after: attributes that a forward changed, with what they then were. moved: where inside them a number did."""

    after: dict[Key, Any] = field(default_factory=dict)
    moved: tuple[str, ...] = ()

    def update(self, other: Changes) -> None:
        self.after, self.moved = other.after, other.moved


def state_of(model: nn.Module, loss: Callable[..., Any] | None) -> State:
    attributes: dict[Key, Any] = {}
    for path, module in model.named_modules():
        attributes |= {(path, key): value for key, value in vars(module).items() if key not in MODULE_STATE}
        attributes |= {(path, f"{key}.requires_grad"): p.requires_grad for key, p in _parameters(module)}
        attributes |= {(path, f"{key} (a parameter)"): p for key, p in _parameters(module)}
    attributes |= {("", name): value for name, value in _outside(model, loss)}
    marker = _Marker()
    marks = {key: dict(marker.marks("", value, 0)) for key, value in attributes.items()}
    return State(attributes, marks, marker.held, _random_states())


def changes(before: State, after: State) -> Changes:
    found, moved = Changes(), []
    for key in after.marks | before.marks:
        old, new = before.marks.get(key, {}), after.marks.get(key, {})
        if old != new:
            found.after[key] = after.attributes.get(key)
            at = [where for where in old | new if old.get(where) != new.get(where)]
            if any(_is_number(old.get(where), new.get(where)) for where in at):
                moved.append(name_of(key))
    found.moved = tuple(moved)
    return found


def check_random(before: State, after: State) -> None:
    for name, state in before.randoms.items():
        if after.randoms[name] != state:
            raise CaptureError(
                f"the forward draws random numbers from {name}, which would be the same in every step",
                "random numbers from torch: torch.rand, torch.randn, torch.bernoulli, dropout",
                "draw them with torch, or outside the model, as an entry of the batch",
            )


def remembered(names: list[str]) -> CaptureError:
    listed = ", ".join(dict.fromkeys(names))
    return CaptureError(
        f"the forward remembers {listed} from one step to the next, in Python",
        "a forward that gives the same every time, but for its buffers",
        "make it a buffer (`register_buffer`) that the forward writes to, or change it outside of the forward",
    )


def settle_buffers(before: Mapping[tuple[nn.Module, str], Tensor]) -> None:
    """Buffers that were assigned (`self.centre = ...`) are written instead, and assigned back."""
    for (module, name), old in before.items():
        new = own_buffers(module).get(name)
        if new is old:
            continue
        if new is None or new.shape != old.shape or new.dtype != old.dtype:
            given = "None" if new is None else f"a tensor of shape {tuple(new.shape)}, {new.dtype}"
            raise CaptureError(
                f"the forward sets the buffer {name!r} of {type(module).__name__} to {given}",
                f"a tensor of shape {tuple(old.shape)}, {old.dtype}, as it was",
                "give the buffer its final shape and dtype when the model is built",
            )
        with torch.no_grad():
            old.copy_(new)
        own_buffers(module)[name] = old


def buffers_of(model: nn.Module) -> dict[tuple[nn.Module, str], Tensor]:
    return {
        (module, name): buffer
        for module in model.modules()
        for name, buffer in own_buffers(module).items()
        if buffer is not None
    }


def set_attributes(model: nn.Module, after: Mapping[Key, Any]) -> None:
    """Attributes of the model as they were after a forward."""
    modules = dict(model.named_modules())
    for (path, key), value in after.items():
        if path in modules and key.isidentifier() and key in vars(modules[path]):
            modules[path].__dict__[key] = value


def restore(model: nn.Module, before: State) -> None:
    """Attributes that were assigned are what they were before."""
    set_attributes(model, before.attributes)
    modules = dict(model.named_modules())
    for (path, key), _ in list(vars_of(modules)):
        if (path, key) not in before.attributes:
            del modules[path].__dict__[key]


def vars_of(modules: Mapping[str, nn.Module]) -> Iterator[tuple[Key, Any]]:
    for path, module in modules.items():
        for key, value in vars(module).items():
            if key not in MODULE_STATE:
                yield (path, key), value


def name_of(key: Key) -> str:
    return repr(".".join(filter(None, key)))


def _parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return module.named_parameters(recurse=False)


def _is_number(old: object, new: object) -> bool:
    return any(isinstance(mark, _NUMBERS) for mark in (old, new))


def _outside(model: nn.Module, loss: Callable[..., Any] | None) -> Iterator[tuple[str, Any]]:
    """What the model's own functions and the loss read besides: globals of their modules, variables around them."""
    if isinstance(loss, nn.Module):
        yield from ((f"{key} of the loss", value) for key, value in vars(loss).items() if key not in MODULE_STATE)
    for kind in classes_of(model):
        for key, value in vars(kind).items():
            if isinstance(value, _KEPT) and not key.startswith("__"):
                yield f"{key} of the class {kind.__qualname__}", value
    for function in functions_of(model, loss):
        held = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        for name, value in held.items():
            if isinstance(value, _KEPT):
                yield f"{name} of {function.__module__}", value
        for name, value in around(function):
            if value is not None:
                yield f"{name} around {function.__qualname__}", value
        for name, value in (*held.items(), *around(function)):
            if isinstance(value, FunctionType) and vars(value):
                yield f"attributes of the function {name}", vars(value)


def _random_states() -> dict[str, str]:
    return {"Python's `random`": repr(random.getstate()), "`numpy.random`": repr(np.random.get_state(legacy=False))}


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


class _Marker:
    """Writes a value down so that two of its states can be compared; each object once."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.held: list[Any] = []

    def marks(self, path: str, value: Any, depth: int) -> Iterator[tuple[str, object]]:
        if isinstance(value, _PLAIN):
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
            yield from self.marks(f"{path}[{key!r}]" if isinstance(key, _PLAIN) else f"{path}[...]", item, depth + 1)

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
        if isinstance(value, Tensor | nn.Module | type) or callable(value) or not hasattr(value, "__dict__"):
            return ""
        return dict(vars(value))
