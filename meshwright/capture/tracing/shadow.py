"""A copy of the model whose parameters and buffers are fakes, for export to run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from meshwright.capture.precision import Precision, dtype_in
from meshwright.capture.tracing.code import held_in, places_in
from meshwright.torch_compat import FakeMode, fake_parameter, fake_tensor, forward_hooks


def shadow_of(
    model: nn.Module, loss: Callable[..., Any] | None, mode: FakeMode, precision: Precision | None
) -> tuple[nn.Module, Callable[..., Any] | None]:
    """The copy, and the loss as it sees the copy. Shared tensors stay shared.

    Functions that modules hold (`self.head = lambda x: x @ self.embedding.weight.T`), hooks and the loss may close over
    the model, or name it (an auxiliary loss that a layer keeps, a norm of weights): `deepcopy` leaves these as they
    are, so they are rebuilt around the copy.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        made = tuple(parameter.shape), dtype_in(parameter, precision), mode
        memo[id(parameter)] = fake_parameter(*made, requires_grad=parameter.requires_grad)
    for tensor in (*model.buffers(), *_made(model)):
        memo[id(tensor)] = fake_tensor(tuple(tensor.shape), dtype_in(tensor, precision), mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, about copies of itertools
        shadow = copy.deepcopy(model, memo)
    for holder in _holders(shadow):
        for key, value in list(holder.items()):
            if isinstance(value, FunctionType):
                holder[key] = _around(value, memo)
            elif hasattr(type(value), "meshwright_only"):  # a trainer's own hook: no part of what the model computes
                del holder[key]
    return shadow, _seeing(loss, memo)


def _made(model: nn.Module) -> Iterator[Tensor]:
    """What a module keeps of its last forward (a normalised weight); a copy of it would need its history."""
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor) and not value.is_leaf)


def _holders(model: nn.Module) -> Iterator[dict[Any, Any]]:
    for module in model.modules():
        yield vars(module)
        yield from forward_hooks(module)


def _seeing(loss: Any, memo: dict[int, Any]) -> Any:
    """The loss as it is for the copy: it may read the model by variables, arguments of a `partial`, attributes."""
    if isinstance(loss, FunctionType):
        return _around(loss, memo)
    if isinstance(loss, partial):
        args = [memo.get(id(one), one) for one in loss.args]
        return partial(_seeing(loss.func, memo), *args, **{k: memo.get(id(v), v) for k, v in loss.keywords.items()})
    if isinstance(loss, MethodType):
        return MethodType(loss.__func__, _holding(loss.__self__, memo))
    return _holding(loss, memo)


def _holding(holder: Any, memo: dict[int, Any]) -> Any:
    """The object, or one like it that holds the copy where it holds the model or a part of it."""
    held = {key: memo[id(value)] for key, value in getattr(holder, "__dict__", {}).items() if id(value) in memo}
    if not held or isinstance(holder, type):
        return holder
    made = copy.copy(holder)
    vars(made).update(held)
    return made


def _around(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """The function with the model's own modules and tensors, among the variables around it and the globals that it
    names, replaced by the copy's."""
    cells, names = function.__closure__ or (), function.__globals__
    read = {key: names[key] for _, held, key in places_in(function) if held is names}
    named = {key: memo[id(value)] for key, value in read.items() if id(value) in memo}
    if not named and not any(id(held_in(cell)) in memo for cell in cells):
        return function
    changed = tuple(CellType(memo.get(id(held_in(cell)), held_in(cell))) for cell in cells)
    made = FunctionType(
        function.__code__, names | named if named else names, function.__name__, function.__defaults__, changed
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
