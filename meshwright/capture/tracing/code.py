"""The code that a model and its loss are made of: functions, the modules they are in, what these hold besides."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import _lru_cache_wrapper, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from meshwright.torch_compat import forward_hooks

_LIBRARIES = (frozenset({"torch", "numpy", "sympy", "meshwright"}) | sys.stdlib_module_names) - {"__main__"}
_KNOWN = _LIBRARIES | {"transformers"}


def classes_of(model: nn.Module) -> set[type]:
    """Classes of the model's modules, torch's own left out."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__} - {object}
    return {kind for kind in kinds if kind.__module__.partition(".")[0] != "torch"}


def functions_of(model: nn.Module, loss: Callable[..., Any] | None) -> list[FunctionType]:
    """Methods of its classes, and the loss where that is a function."""
    found = [held for kind in classes_of(model) for held in vars(kind).values() if isinstance(held, FunctionType)]
    return [*found, loss] if isinstance(loss, FunctionType) else found


def modules_of(model: nn.Module, loss: Callable[..., Any] | None) -> list[ModuleType]:
    """The Python modules that these functions are in."""
    names = {function.__module__ for function in functions_of(model, loss)}
    return [sys.modules[name] for name in names if name in sys.modules]


def functions_reached(model: nn.Module, loss: Callable[..., Any] | None) -> list[FunctionType]:
    """These functions, those that modules hold, hooks, and all of users' modules that they may call by name."""
    own = functions_of(model, loss)
    waiting: list[Any] = [loss]
    waiting += [value for function in own for _, value in (*named_in(function), *around(function))]
    for module in model.modules():
        waiting += [*vars(module).values(), *(hook for hooks in forward_hooks(module) for hook in hooks.values())]
    found = {id(function): function for function in own}
    kinds: set[type] = set()
    while waiting:
        for function in _functions_in(waiting.pop(), kinds):
            if id(function) not in found:
                found[id(function)] = function
                waiting += [value for _, value in named_in(function)]
                waiting += [value for _, value in around(function)]
    return list(found.values())


def named_in(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Globals that a function names, with their names; of a user's module that it names, what it names of that."""
    yield from ((f"{key} of {name}", held[key]) for name, held, key in places_in(function))


def places_in(function: FunctionType) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Where these globals are: the module's name, its variables and the global's name."""
    names = names_in(function.__code__)
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield function.__module__, function.__globals__, name
        if isinstance(value, ModuleType) and not is_installed(value.__name__):
            yield from ((value.__name__, vars(value), key) for key in names & vars(value).keys())


def names_in(code: CodeType) -> set[str]:
    """Globals and attributes that it names, code inside it too."""
    names, waiting = set[str](), [code]
    while waiting:
        one = waiting.pop()
        names.update(one.co_names)
        waiting += [each for each in one.co_consts if isinstance(each, CodeType)]
    return names


def _functions_in(value: Any, kinds: set[type]) -> Iterator[FunctionType]:
    """Of users' code: the function itself, or methods of a class or of an object's class. kinds: that were met."""
    value = value.func if isinstance(value, partial) else value
    value = getattr(value, "__func__", value) if isinstance(value, MethodType | staticmethod | classmethod) else value
    value = value.__wrapped__ if isinstance(value, _lru_cache_wrapper) else value
    if isinstance(value, FunctionType):
        if not is_installed(value.__module__ or ""):
            yield value
        return
    kind = value if isinstance(value, type) else type(value)
    if kind in kinds:
        return
    kinds.add(kind)
    if not is_installed(kind.__module__) and not issubclass(kind, nn.Module):
        yield from (held for held in vars(kind).values() if isinstance(held, FunctionType))


def is_library(module: str) -> bool:
    """Whether it is Python's, torch's or of another package that keeps nothing of a forward."""
    return module.partition(".")[0] in _KNOWN


def is_installed(module: str) -> bool:
    """Whether it is a library or of another installed package, rather than a file of the user's."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return is_library(module) or "site-packages" in file or "dist-packages" in file


def modules_around(model: nn.Module, loss: Callable[..., Any] | None) -> list[ModuleType]:
    """These modules, and all whose functions, classes or names they import: helpers of the model's code. Python's own,
    torch's and numpy's are left out."""
    waiting = modules_of(model, loss)
    found: dict[str, ModuleType] = {}
    while waiting:
        module = waiting.pop()
        if module.__name__ in found or module.__name__.partition(".")[0] in _LIBRARIES:
            continue
        found[module.__name__] = module
        held = list(vars(module).values())
        waiting += [value for value in held if isinstance(value, ModuleType)]
        names = {value.__module__ for value in held if isinstance(value, FunctionType | type)}
        waiting += [sys.modules[name] for name in names if name in sys.modules]
    return list(found.values())


def around(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Variables around a function, with their names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not yet assigned
            continue


def held_in(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet, or deleted
        return None


def names_reached(model: nn.Module, loss: Callable[..., Any] | None) -> set[str]:
    """Names in code that a forward or the loss may reach: their own, and that of methods and functions so named."""
    return _reached(model, loss)[0]


def code_reached(model: nn.Module, loss: Callable[..., Any] | None) -> set[CodeType]:
    """The code itself."""
    return _reached(model, loss)[1]


def _reached(model: nn.Module, loss: Callable[..., Any] | None) -> tuple[set[str], set[CodeType]]:
    known: dict[str, list[CodeType]] = {}
    for kind in classes_of(model):
        for name, held in vars(kind).items():
            known.setdefault(name, []).extend(_code_of(held))
    for file in modules_of(model, loss):
        for name, held in vars(file).items():
            known.setdefault(name, []).extend(_code_of(held))
    waiting = [*known.get("forward", ()), *_code_of(loss)]
    waiting += [code for module in model.modules() for held in vars(module).values() for code in _code_of(held)]
    for module in model.modules():
        waiting += [code for hooks in forward_hooks(module) for hook in hooks.values() for code in _code_of(hook)]
    found, seen = set[str](), set[CodeType]()
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        texts = [each for each in code.co_consts if isinstance(each, str) and each.isidentifier()]  # for getattr
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        for name in {*code.co_names, *texts} - found:
            found.add(name)
            waiting += known.get(name, ())
    return found, seen


def _code_of(held: Any) -> list[CodeType]:
    """Of a function, however it is wrapped: a method, a property, one under a cache."""
    held = getattr(held, "fget", held)
    held = getattr(held, "__func__", held)
    held = getattr(held, "__wrapped__", held) if isinstance(held, _lru_cache_wrapper) else held
    if not isinstance(held, FunctionType):
        return []
    inside = getattr(held, "__wrapped__", None)
    return [held.__code__, *(_code_of(inside) if inside is not None else ())]


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
