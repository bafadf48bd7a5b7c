"""The functional form of each op that writes: to its first operand, or to `out=`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from meshwright.capture.program import Op, Ref, TensorType, TorchConstant
from meshwright.capture.reading.traced import tensor_type
from meshwright.capture.targets import resolve
from meshwright.errors import CaptureError
from meshwright.torch_compat import argument_position, functional_overload, written_names

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
    name = op.target.split(".")[1]
    if name == "copy_":
        return _copy(op, types, written)
    target = RENAMED.get(op.target) or str(functional_overload(resolve(op.target)) or "")
    if not target:
        raise CaptureError(
            f"{op.target} in {op.module or 'the model'} writes to a value in place",
            "an in-place operation that has an out-of-place form",
            f"use another form of {name.rstrip('_')!r}",
        )
    if name.removesuffix("_") in ARITHMETIC:
        wide = _promoted(op, types)
        if wide != written.dtype:
            back = ("aten.to.dtype", (None, TorchConstant(written.dtype)), (), written)
            return [(target, op.args, op.kwargs, TensorType(written.shape, wide)), back]
    return [(target, op.args, op.kwargs, written)]


def check_written(node: fx.Node, op: Op) -> None:
    """Refuses ops that write to several tensors, and those that change a tensor's shape."""
    places = [(name, _given(node, name)) for name in written_names(node.target)]
    first = node.args[0] if node.args else None
    known = all(isinstance(written, fx.Node) for _, written in places)
    if not known or (len(places) > 1 and not all(name in node.kwargs for name, _ in places)):
        raise CaptureError(
            f"{op.target} in {op.module or 'the model'} writes to several tensors",
            "ops that write to one, or to `out=`",
            "write to one after the other, or to new tensors",
        )
    before, after = (item.meta.get("val") if isinstance(item, fx.Node) else None for item in (first, node))
    if isinstance(before, Tensor) and isinstance(after, Tensor) and op.target.split(".")[1] in _TURNING:
        raise CaptureError(
            f"{op.target} in {op.module or 'the model'} changes a tensor's shape in place",
            "tensors that keep their shape",
            f"use {op.target.split('.')[1].rstrip('_')!r}, which makes a new one",
        )


_TURNING = ("transpose_", "t_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "resize_", "resize_as_", "set_")


def outputs_of(node: fx.Node) -> list[fx.Node]:
    """The tensors that an op is given as `out=`, in the order of its results; empty for an op that writes in place."""
    found = [_given(node, name) for name in written_names(node.target) if name in node.kwargs]
    return [item for item in found if isinstance(item, fx.Node)]


def out_form(node: fx.Node, op: Op) -> tuple[Op, list[TensorType]]:
    """The op without `out=`, and the types of what it makes, before these take the dtypes of `out=`."""
    found = functional_overload(node.target)
    if found is None:
        raise CaptureError(
            f"{op.target} in {op.module or 'the model'} writes to `out=`",
            "an operation that has a form without",
            "assign its result instead",
        )
    written = set(written_names(node.target))
    kwargs = {key: arg for key, arg in node.kwargs.items() if key not in written}
    args, named = fx.map_arg((node.args, kwargs), lambda item: item.meta["val"])
    with next(item.meta["val"] for item in outputs_of(node)).fake_mode:
        made = found(*args, **named)
    tensors = list(made) if isinstance(made, list | tuple) else [made]
    kept = tuple(pair for pair in op.kwargs if pair[0] not in written)
    return Op(str(found), op.args, kept, (), op.module), [tensor_type(tensor) for tensor in tensors]


def _given(node: fx.Node, name: str) -> object:
    position = argument_position(node.target, name)
    return node.args[position] if position is not None and position < len(node.args) else node.kwargs.get(name)


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
