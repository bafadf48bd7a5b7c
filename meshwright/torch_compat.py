"""Every private torch name that meshwright uses, behind one door; each has a contract test.

Supported: torch 2.11 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

FakeMode = FakeTensorMode


def fake_mode() -> FakeTensorMode:
    """A mode under which tensors have shapes and dtypes but no storage."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def fake_tensor(shape: tuple[int, ...], dtype: torch.dtype, mode: FakeTensorMode, device: str = "cpu") -> Tensor:
    with mode:
        return torch.empty(shape, dtype=dtype, device=device)


def trace_joint(function: Callable[..., Any], inputs: list[Tensor], mode: AbstractContextManager[Any]) -> GraphModule:
    """The ATen graph of `function(*inputs)`, calls to `torch.autograd.grad` inside it included."""
    with mode:
        return make_fx(function)(*inputs)


def symbolic_value(symbol: Any, batch: int) -> int:
    """The value of a SymInt that depends on the batch alone, at this batch."""
    expression = symbol.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))
