"""The functional form of each op that writes to its first operand."""

from __future__ import annotations

from typing import Any

import torch

from meshwright.capture.program import Op, Ref, TensorType, TorchConstant
from meshwright.capture.targets import resolve
from meshwright.errors import CaptureError

Call = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...], TensorType]
"""Target, arguments, keyword arguments, type of the result."""

RENAMED = {
    "aten.bernoulli_.float": "aten.bernoulli.p",
    "aten.normal_.default": "aten.normal_functional.default",
    "aten.zero_.default": "aten.zeros_like.default",
}
ARITHMETIC = ("add", "sub", "mul", "div")


def functional_form(op: Op, types: dict[str, TensorType]) -> list[Call]:
    """Calls that together compute what the op would have left in its first operand; each takes the one before."""
    written = types[op.args[0].name]
    namespace, name, *overload = op.target.split(".")
    if name == "copy_":
        return _copy(op, types, written)
    target = RENAMED.get(op.target) or ".".join([namespace, name.removesuffix("_"), *overload])
    try:
        resolve(target)
    except AttributeError as error:
        raise CaptureError(
            f"{op.target} in {op.module or 'the model'} writes to a value in place",
            "an in-place operation that has an out-of-place form",
            f"use another form of {name.rstrip('_')!r}",
        ) from error
    if name.removesuffix("_") in ARITHMETIC:
        wide = _promoted(op, types)
        if wide != written.dtype:
            return [(target, op.args, op.kwargs, TensorType(written.shape, wide)), _cast(written)]
    return [(target, op.args, op.kwargs, written)]


def _copy(op: Op, types: dict[str, TensorType], written: TensorType) -> list[Call]:
    """`copy_`: the source in the shape and dtype of what it is copied to, in memory of its own."""
    source = op.args[1]
    given = types[source.name]
    calls: list[Call] = []
    if given.dtype != written.dtype:
        wide = TensorType(given.shape, written.dtype)
        calls.append(("aten.to.dtype", (source, TorchConstant(written.dtype)), (), wide))
    if given.shape != written.shape:
        calls.append(("aten.expand.default", (source, written.shape), (), written))
    calls.append(("aten.clone.default", (source,), (), written))
    return calls


def _promoted(op: Op, types: dict[str, TensorType]) -> str:
    found = getattr(torch, types[op.args[0].name].dtype)
    for arg in op.args[1:]:
        if isinstance(arg, Ref) and types[arg.name].shape:
            found = torch.promote_types(found, getattr(torch, types[arg.name].dtype))
    return str(found).removeprefix("torch.")


def _cast(type_: TensorType) -> Call:
    return ("aten.to.dtype", (None, TorchConstant(type_.dtype)), (), type_)
