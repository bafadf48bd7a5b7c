"""What a forward remembers in Python: attributes, lists, counters, generators of random numbers.

A Program holds tensors alone. Re-assigned buffers become updates of the Program; whatever else a forward changes is
frozen at capture, so it is looked at before and after tracing, and judged by tracing once more (see `capture`).
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from meshwright.capture.tracing.code import around, classes_of, functions_reached, is_installed, is_library, named_in
from meshwright.capture.tracing.marks import PLAIN, Marker
from meshwright.errors import CaptureError
from meshwright.torch_compat import own_buffers

MODULE_STATE = frozenset(vars(nn.Module())) - {"training"}
MODULE_STATE |= {"_flat_weights", "_flat_weight_refs"}  # recurrent layers of torch list their weights anew
MODULE_STATE |= {"_output_capturing_hooks_installed"}  # transformers does so once, when outputs are first asked for
_KEPT = (*(kind for kind in PLAIN if kind is not type(None)), list, dict, set, deque, random.Random)
_KEPT += (Iterator, ContextVar, partial, threading.local, SimpleNamespace)
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
    marker = Marker()
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
        "make it a buffer (`register_buffer`) that the forward writes to, or change it outside of the forward; what "
        "the loss needs (auxiliary losses) the forward returns with its output",
    )


def write_assigned_buffers(before: Mapping[tuple[nn.Module, str], Tensor]) -> None:
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
            if _is_kept(value) and not key.startswith("__"):
                yield f"{key} of the class {kind.__qualname__}", value
    for function in functions_reached(model, loss):
        for name, value in named_in(function):
            if _is_kept(value):
                yield name, value
        for name, value in around(function):
            file = type(value).__module__
            if value is not None and (is_library(file) or not is_installed(file)):
                yield f"{name} around {function.__qualname__}", value
        if vars(function):
            yield f"attributes of the function {function.__qualname__}", vars(function)
        for what, defaults in (("", function.__defaults__), ("keyword ", function.__kwdefaults__)):
            if defaults:
                yield f"default {what}arguments of {function.__qualname__}", defaults


def _is_kept(value: Any) -> bool:
    """Whether what is in it may be more from one forward to the next: data, and objects of users' classes."""
    if isinstance(value, _KEPT):
        return True
    own = not is_installed(type(value).__module__)
    return own and not isinstance(value, (Tensor, nn.Module, type, FunctionType))


def _random_states() -> dict[str, str]:
    return {"Python's `random`": repr(random.getstate()), "`numpy.random`": repr(np.random.get_state(legacy=False))}
