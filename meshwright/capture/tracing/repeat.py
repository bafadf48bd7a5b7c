"""Layers that are alike are traced once: capture does not grow with depth.

Modules of one list are *alike* when they are equal in everything but their own tensors: class, settings, children,
the shapes of parameters. The first call of one of them is traced between two marks; a later call of another, with
arguments of the same kind, is recorded as one op that stands for the same work on its own tensors. The reader then
writes the traced ops out again under the other layer's names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.capture.tracing.opaque import Entries, Slot, blank, fill, flatten, record_whole
from meshwright.capture.tracing.state import buffers_of, write_assigned_buffers


class NotAlikeError(Exception):
    """A traced layer did something that cannot be written out for another one; everything is traced instead."""


BEGIN, END, AGAIN = "begin", "end", "again"
FEWEST = 3
"""Lists of fewer layers than this are traced as they are."""

_PLAIN = (bool, int, float, str, tuple, frozenset, torch.dtype)
_MODULE_STATE = frozenset(vars(nn.Module()))


@dataclass(slots=True)
class _Traced:
    """path: of the layer that was traced. results: how they nest, and what they look like."""

    path: str
    number: int
    nested: Any = None
    results: list[Tensor] = field(default_factory=list)


def trace_alike_once(model: nn.Module) -> None:
    """Replace the forwards of alike layers of a model that is about to be exported."""
    counts = Counter(id(tensor) for _, tensor in _tensors(model, remove_duplicate=False))
    numbers = iter(range(1_000_000))
    for path, layers in _lists(model):
        groups: list[list[tuple[str, nn.Module]]] = []
        for name, layer in layers:
            if any(counts[id(tensor)] > 1 for _, tensor in _tensors(layer)):
                continue
            home = next((group for group in groups if _alike(group[0][1], layer)), None)
            if home is None:
                groups.append([(f"{path}{name}", layer)])
            else:
                home.append((f"{path}{name}", layer))
        for group in groups:
            if len(group) >= FEWEST:
                _share(group, numbers)


def _lists(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, list[tuple[str, nn.Module]]]]:
    """The outermost lists of modules, with the path before their members' names."""
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList | nn.Sequential) and len(child) >= FEWEST:
            yield f"{prefix}{name}.", list(child.named_children())
        else:
            yield from _lists(child, f"{prefix}{name}.")


def _tensors(module: nn.Module, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=remove_duplicate)
    yield from module.named_buffers(remove_duplicate=remove_duplicate)


def _alike(first: nn.Module, other: nn.Module) -> bool:
    if type(first) is not type(other) or first.training != other.training:
        return False
    mine, theirs = _settings(first), _settings(other)
    if mine.keys() != theirs.keys() or not all(_same(mine[key], theirs[key]) for key in mine):
        return False
    tensors = [
        [(n, tuple(t.shape), t.dtype, t.requires_grad) for n, t in _tensors(module)] for module in (first, other)
    ]
    if tensors[0] != tensors[1]:
        return False
    children, others = dict(first.named_children()), dict(other.named_children())
    return children.keys() == others.keys() and all(_alike(children[name], others[name]) for name in children)


def _settings(module: nn.Module) -> dict[str, Any]:
    """Attributes of its own, and hooks where there are any."""
    state = vars(module)
    return {key: value for key, value in state.items() if key not in _MODULE_STATE or ("hook" in key and value)}


def _same(first: Any, other: Any) -> bool:
    if first is other:
        return True
    return type(first) is type(other) and isinstance(first, _PLAIN) and first == other


def _share(group: list[tuple[str, nn.Module]], numbers: Iterator[int]) -> None:
    traced: dict[str, _Traced] = {}
    for path, layer in group:
        layer.forward = _forward(path, _writing_buffers(layer), traced, numbers)


def _writing_buffers(layer: nn.Module) -> Callable[..., Any]:
    """Its forward, after which buffers that it assigned are written: that is what is done again for other layers."""
    forward = layer.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        before = buffers_of(layer)
        result = forward(*args, **kwargs)
        write_assigned_buffers(before)
        return result

    return call


def _forward(
    path: str, forward: Callable[..., Any], traced: dict[str, _Traced], numbers: Iterator[int]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors: list[Tensor] = []
        nested = flatten((args, tuple(kwargs.items())), tensors)
        _check_no_strays(path, nested)
        seen = [id(tensor) for tensor in tensors]
        looks = [(t.dtype, str(t.shape), str(t.stride()), seen.index(id(t))) for t in tensors]
        kind = f"{nested} {torch.is_grad_enabled()} {looks}"
        if kind in traced:
            known = traced[kind]
            again = record_whole(AGAIN, lambda *_: blank(known.results), (known.number, path), tensors)
            return fill(known.nested, again)
        new = _Traced(path, next(numbers))
        entered = record_whole(BEGIN, lambda *given: blank(given), (new.number, path), tensors)
        given, named = fill(nested, entered)
        result = forward(*given, **dict(named))
        new.nested = flatten(result, new.results)
        _check_no_strays(path, new.nested)
        traced[kind] = new
        return fill(new.nested, record_whole(END, lambda *given: blank(given), (new.number, path), new.results))

    return call


def _check_no_strays(path: str, tree: Any) -> None:
    """Tensors inside objects are not seen, and would be the first layer's in all the others."""
    if isinstance(tree, tuple):
        for item in tree:
            _check_no_strays(path, item)
    elif isinstance(tree, Entries):
        _check_no_strays(path, tree.values)
    elif not isinstance(tree, (*_PLAIN, Slot, type(None))) and _holds_tensors(tree):
        raise NotAlikeError(f"{path} takes or gives tensors inside a {type(tree).__name__}")


def _holds_tensors(tree: Any) -> bool:
    inside = [*tree.values()] if isinstance(tree, Mapping) else []
    inside += [] if isinstance(tree, type | nn.Module) else vars(tree).values() if hasattr(tree, "__dict__") else []
    listed = [item for value in inside for item in (value if isinstance(value, list | tuple) else [value])]
    return any(isinstance(item, Tensor) for item in listed)
