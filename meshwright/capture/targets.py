"""From an Op's target text to the function it names, and calling it on real or fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor

import meshwright.capture.counter
import meshwright.capture.tracing.ctc
import meshwright.capture.tracing.grouped  # noqa: F401  (they define operators that targets name)
from meshwright.caches import CACHES
from meshwright.capture.program import Op, Ref, RunDevice, TorchConstant, map_leaves


@CACHES.memoized(maxsize=None)
def resolve(target: str) -> Callable[..., Any]:
    """`aten.linear.default` -> the operator; `package.module:function` -> the function."""
    if ":" in target:
        module, name = target.split(":")
        function: Any = import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        return cast("Callable[..., Any]", function)
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    operator: Callable[..., Any] = found
    return operator


_AS_RUN = {"aten.view.default": "aten.reshape.default"}
"""The strides that a view relied on are those of the kernel that capture saw; another may have run."""


def call(op: Op, values: Mapping[str, Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Run one op on the values it names."""

    def leaf(arg: Any) -> Any:
        if isinstance(arg, Ref):
            return values[arg.name]
        if isinstance(arg, TorchConstant):
            return getattr(torch, arg.name)
        return device if isinstance(arg, RunDevice) else arg

    args = map_leaves(op.args, leaf)
    result = resolve(_AS_RUN.get(op.target, op.target))(*args, **{key: map_leaves(arg, leaf) for key, arg in op.kwargs})
    return tuple(_tensors(result)) if isinstance(result, list | tuple) else (result,)


def _tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors among nested results, in order; a function may also return None in places."""
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, Tensor):
        yield tree
