"""What a forward reads besides tensors and plain attributes, and a user may change between steps.

`model.config.scale = 2.0`, `model.weights[0] = 2.0`, another value of a global that the forward reads: the captured
Program would not follow. Marks of such objects are compared before every step. Only attributes whose names occur in
code that the forward may reach are looked at; whether a change matters is for another capture to say.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.capture.tracing.code import (
    around,
    code_reached,
    functions_of,
    functions_reached,
    held_in,
    is_installed,
    named_in,
    names_in,
    names_reached,
    places_in,
)
from meshwright.capture.tracing.marks import parts_of
from meshwright.capture.tracing.state import MODULE_STATE
from meshwright.torch_compat import writes_seen

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_LISTS = (list, tuple, deque)
_DEEPEST, _MOST_ITEMS, _DIGESTED_BYTES = 3, 200, 1 << 16
Place = tuple[str, Callable[[], Any]]
"""What it is called, and how it is had."""


class Contents:
    """Marks of what is inside objects, as they were; `changed` names those that are others now."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None) -> None:
        names = names_reached(model, loss)
        self._places = [
            *_attributes(model, names),
            *_of_loss(loss, set(model.modules())),
            *_around_code(model, loss, names),
        ]
        self._places += [*_of_classes(model, loss, names), *_environment(model, loss)]
        self._held: list[Any] = []
        self.note()

    def note(self) -> None:
        """From now on, what is there now is expected."""
        self._held = self._marks()

    def changed(self) -> list[str]:
        now = self._marks()
        return [name for (name, _), new, old in zip(self._places, now, self._held, strict=True) if new != old]

    @contextmanager
    def expected_inside(self) -> Iterator[None]:
        """What changes inside is expected from then on, unless something had been changed before."""
        before = self.changed()
        yield
        if not before:
            self.note()

    def _marks(self) -> list[Any]:
        """Of an object that several modules hold, a configuration, the first place has the mark, others its id."""
        seen: dict[int, Any] = {}
        values = (get() for _, get in self._places)
        return [id(value) if id(value) in seen else _mark(value, 0, seen) for value in values]


def _attributes(model: nn.Module, names: set[str]) -> Iterator[Place]:
    for path, module in model.named_modules():
        own = type(module).__module__.partition(".")[0] != "torch"
        for key, value in vars(module).items():
            if key in MODULE_STATE or (own and key not in names) or not _is_looked_at(value):
                continue
            yield f"{key!r} of {f'module {path!r}' if path else 'the model'}", partial(vars(module).get, key)


def _of_loss(loss: Callable[..., Any] | None, members: set[nn.Module]) -> Iterator[Place]:
    """Of a module its attributes; of an object that is called, of a method and of a `partial` what they hold. members:
    modules of the model, one of which the loss is where it has parameters."""
    bound = loss.__self__ if isinstance(loss, MethodType) else loss
    if isinstance(bound, nn.Module):
        yield from _inside_module(bound, "the loss") if bound not in members else ()
    elif loss is not None and not isinstance(loss, FunctionType):
        yield "what the loss holds", lambda: loss


def _inside_module(held_module: nn.Module, name: str) -> Iterator[Place]:
    for module in held_module.modules():
        for held in (vars(module), module._buffers):
            yield from (
                (f"{key!r} of {name}", partial(held.get, key))
                for key, value in held.items()
                if key not in MODULE_STATE and (isinstance(value, _PLAIN) or _is_looked_at(value))
            )


def _around_code(model: nn.Module, loss: Callable[..., Any] | None, names: set[str]) -> Iterator[Place]:
    """Globals and variables around functions that hold numbers, lists, dicts, sets, modules and users' objects."""
    seen: set[tuple[int, str]] = set()
    members = set(model.modules())
    own = {id(function) for function in functions_of(model, loss)}
    for function in functions_reached(model, loss):
        for module, held, name in places_in(function):
            if (id(held), name) in seen or (id(function) in own and name not in names):
                continue
            seen.add((id(held), name))
            yield from _looked_into(f"{name} of {module}", held[name], partial(held.get, name), members)
        for name, value in around(function):
            cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
            if isinstance(value, Tensor):
                yield f"{name} around {function.__qualname__}", partial(held_in, cell)
            else:
                yield from _looked_into(
                    f"{name} around {function.__qualname__}", value, partial(held_in, cell), members
                )


def _looked_into(name: str, value: Any, get: Callable[[], Any], members: set[nn.Module]) -> Iterator[Place]:
    """members: modules of the model, which are looked at as such."""
    if isinstance(value, nn.Module):
        yield from _inside_module(value, name) if value not in members else ()
    elif isinstance(value, (bool, int, float, str, list, dict, set, deque, SimpleNamespace)) or _is_users_object(value):
        yield name, get


def _of_classes(model: nn.Module, loss: Callable[..., Any] | None, names: set[str]) -> list[Place]:
    """What users' classes hold: of the model's modules, of the loss, and those that their code names."""
    values: list[Any] = [type(module) for module in model.modules()]
    values.append(loss.__self__ if isinstance(loss, MethodType) else loss)
    names = set(names)
    for function in functions_reached(model, loss):
        values += [value for _, value in (*named_in(function), *around(function))]
        names.update(function.__code__.co_names)
    found: dict[tuple[type, str], Place] = {}
    for value in values:
        for kind in (value if isinstance(value, type) else type(value)).__mro__:
            for key, held in () if is_installed(kind.__module__) else vars(kind).items():
                if key in names and (isinstance(held, (*_PLAIN, list, dict, set, deque)) or _is_users_object(held)):
                    found[kind, key] = f"{key!r} of class {kind.__qualname__}", partial(vars(kind).get, key)
    return list(found.values())


def _environment(model: nn.Module, loss: Callable[..., Any] | None) -> Iterator[Place]:
    """All of it, where users' code reads some."""
    users = [one.__code__ for one in functions_reached(model, loss) if not is_installed(one.__module__ or "")]
    if any({"environ", "getenv"} & names_in(code) for code in (*users, *code_reached(model, loss))):
        yield "the environment (os.environ)", lambda: "\0".join(f"{key}={value}" for key, value in os.environ.items())


def _is_users_object(value: Any) -> bool:
    if isinstance(value, ContextVar | partial):
        return True
    code = (Tensor, nn.Module, type, FunctionType, BuiltinFunctionType)
    return not isinstance(value, code) and not is_installed(type(value).__module__)


def _digest(value: Tensor) -> int:
    """Of what a small tensor on the CPU holds: writes through `.data` are not counted."""
    if type(value) is not Tensor or value.device.type != "cpu" or not 0 < value.nbytes <= _DIGESTED_BYTES:
        return 0
    if value.layout is not torch.strided:
        return 0
    return hash(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _is_looked_at(value: Any) -> bool:
    """Plain values are compared by `unchanged`; modules, functions and objects of torch are let alone."""
    if value is None or isinstance(value, (Tensor, *_LISTS, Mapping, set)):
        return True
    torchs = type(value).__module__.partition(".")[0] in ("torch", "logging")
    return not (torchs or isinstance(value, (*_PLAIN, nn.Module, type))) and bool(parts_of(value))


def _mark(value: Any, depth: int, seen: dict[int, Any]) -> Any:
    """Something that is equal as long as the value is what it was."""
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, _PLAIN):
        return value
    seen[id(value)] = id(value)  # of an object inside itself
    seen[id(value)] = _mark_inside(value, depth + 1, seen)
    return seen[id(value)]


def _mark_inside(value: Any, depth: int, seen: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return (id(value), 0 if value.is_inference() else writes_seen(value), _digest(value))
    if depth > _DEEPEST or not _is_looked_at(value):
        return id(value)
    if isinstance(value, _LISTS):
        return (len(value), *(_mark(item, depth, seen) for item in islice(value, _MOST_ITEMS)))
    if isinstance(value, set):
        return frozenset(map(repr, value))
    held = value if isinstance(value, Mapping) else parts_of(value)
    if isinstance(held, str):
        return id(value)
    return (len(held), *((repr(key), _mark(item, depth, seen)) for key, item in islice(held.items(), _MOST_ITEMS)))
