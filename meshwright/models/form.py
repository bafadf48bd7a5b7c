"""Batches that hold more than tensors by name: dicts, lists and tuples of them, and plain values.

A *form* is the shape of such a batch as text. Tensors have names in it, the others stand there as they are: a plan is
made for these values. A batch of tensors alone has the empty form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from meshwright.errors import ModelError

PLAIN = (bool, int, float, str, type(None))
_TENSOR, _VALUE, _DICT, _LIST, _TUPLE = "tensor", "value", "dict", "list", "tuple"


def flat_batch(named: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
    """A batch's tensors by name, and its form. A nested one is named by where it is: `image_pixels`, `views_0`."""
    if all(isinstance(entry, Tensor) for entry in named.values()):
        return dict(named), ""
    tensors: dict[str, Tensor] = {name: entry for name, entry in named.items() if isinstance(entry, Tensor)}

    def tree(entry: Any, path: tuple[Any, ...]) -> dict[str, Any]:
        if isinstance(entry, Tensor):
            name = path[0] if len(path) == 1 else _free("_".join(map(str, path)), tensors)
            tensors[name] = entry
            return {_TENSOR: name}
        if isinstance(entry, PLAIN):
            return {_VALUE: entry}
        if isinstance(entry, Mapping) and all(isinstance(key, str) for key in entry):
            return {_DICT: {key: tree(item, (*path, key)) for key, item in entry.items()}}
        if type(entry) in (list, tuple):
            return {type(entry).__name__: [tree(item, (*path, at)) for at, item in enumerate(entry)]}
        raise ModelError(
            f"batch entry {place_of(path)} is a {type(entry).__name__}",
            "a tensor, a number, text, None, or a dict, list or tuple of these",
            "make a tensor of it (torch.as_tensor), or leave it out",
        )

    form = {name: tree(entry, (name,)) for name, entry in named.items()}
    return tensors, json.dumps(form)


def _free(name: str, taken: Mapping[str, Any]) -> str:
    found, number = "".join(c if c.isalnum() else "_" for c in name), 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def shaped(form: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The batch of this form with these tensors."""

    def made(tree: dict[str, Any]) -> Any:
        ((kind, held),) = tree.items()
        if kind == _TENSOR:
            return tensors[held]
        if kind == _DICT:
            return {key: made(item) for key, item in held.items()}
        if kind in (_LIST, _TUPLE):
            found = [made(item) for item in held]
            return tuple(found) if kind == _TUPLE else found
        return held

    return {name: made(tree) for name, tree in json.loads(form).items()} if form else dict(tensors)


def entries_of(form: str) -> tuple[str, ...]:
    """The names of the batch's own entries."""
    return tuple(json.loads(form)) if form else ()


class FlatBatch(dict[str, Any]):
    """A batch's tensors by the form's names, from who has checked the rest."""


def tensors_in(form: str, named: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What a batch holds where the form has tensors, by their names, and in words how it differs from the form
    elsewhere. Tensors that are not given are not missed here."""
    found: dict[str, Any] = {}
    differs: list[str] = []
    for name, tree in json.loads(form).items():
        if name in named:
            for path, held, wanted in _pairs(tree, named[name], (name,)):
                if isinstance(wanted, str):
                    found[wanted] = held
                else:
                    differs.append(f"{place_of(path)} is {_told(held)}, planned was {_told(wanted[0])}")
        elif _VALUE in tree:
            differs.append(f"{name!r} is not given, planned was {_told(tree[_VALUE])}")
    return found, differs


def _pairs(tree: dict[str, Any], given: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Path, what is there and the tensor's name; or in brackets what should be there, where something else is."""
    ((kind, held),) = tree.items()
    if kind == _TENSOR:
        yield path, given, held
    elif kind == _VALUE:
        if type(given) is not type(held) or (given != held and given == given):
            yield path, given, (held,)
    elif kind == _DICT and isinstance(given, Mapping) and set(given) == set(held):
        for key, item in held.items():
            yield from _pairs(item, given[key], (*path, key))
    elif kind in (_LIST, _TUPLE) and isinstance(given, list | tuple) and len(given) == len(held):
        for at, item in enumerate(held):
            yield from _pairs(item, given[at], (*path, at))
    else:
        yield path, given, (f"a {kind} of {', '.join(map(str, held)) if kind == _DICT else len(held)}",)


def place_of(path: tuple[Any, ...]) -> str:
    """`'image'['pixels'][0]`, as one would write it after the batch."""
    first, *rest = path
    return repr(first) + "".join(f"[{key!r}]" for key in rest)


def _told(held: Any) -> str:
    if isinstance(held, PLAIN):
        return held if isinstance(held, str) and held.startswith("a ") else repr(held)
    if isinstance(held, Mapping):
        return f"a dict of {', '.join(map(str, held))}"
    return f"a {type(held).__name__}" + (f" of {len(held)}" if isinstance(held, list | tuple) else "")
