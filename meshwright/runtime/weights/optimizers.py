"""The optimizer that was planned for: making it, and refusing one that keeps another amount of state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from meshwright.errors import RunError
from meshwright.price.parameter import STATES
from meshwright.runtime.weights.local_step import ELEMENTWISE, lend_pieces, prepare, take_back

_PLANNED = "meshwright_optimizer"


def make_optimizer(name: str, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Fused: one call for all parameters, and no tensors in between."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, fused=True)
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9 if name == "momentum" else 0.0, fused=True)


def expect_optimizer(parameters: Iterable[nn.Parameter], planned: str) -> None:
    """From now on, a step of an optimizer with other state than planned on these parameters raises RunError."""
    for parameter in parameters:
        setattr(parameter, _PLANNED, planned)
        prepare(parameter)
    if not _Hooks.handles:
        _Hooks.handles = [register_optimizer_step_pre_hook(_before), register_optimizer_step_post_hook(_after)]


class _Hooks:
    """Registered with the first trainer: torch calls them around every optimizer's step."""

    handles: list[Any] = []  # noqa: RUF012


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """What its class tells: nothing has been allocated yet."""
    take_back(optimizer)
    for group in optimizer.param_groups:
        expected = _of_class(optimizer, group)
        if expected is None:
            continue
        for parameter in group["params"]:
            planned = getattr(parameter, _PLANNED, None)
            if planned is not None and expected != STATES[planned]:
                raise _refuse(optimizer, expected, planned)
    lend_pieces(optimizer, args, kwargs)


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """What it keeps: for a class that we do not know. A tensor of the parameter's size counts."""
    take_back(optimizer)
    if type(optimizer) in ELEMENTWISE:
        return
    for parameter, state in optimizer.state.items():
        planned = getattr(parameter, _PLANNED, None)
        if planned is None or not state or parameter.numel() < 2:
            continue
        kept = sum(isinstance(value, Tensor) and value.numel() == parameter.numel() for value in state.values())
        if kept != STATES[planned]:
            raise _refuse(optimizer, kept, planned)


def _of_class(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> int | None:
    if type(optimizer) in (torch.optim.AdamW, torch.optim.Adam):
        return 3 if group["amsgrad"] else 2
    if type(optimizer) is torch.optim.SGD:
        return 1 if group["momentum"] else 0
    return None


def _refuse(optimizer: torch.optim.Optimizer, kept: int, planned: str) -> RunError:
    return RunError(
        f"{type(optimizer).__name__} keeps {kept} tensors of state per parameter",
        f"{STATES[planned]}, as {planned} does, for which the memory was planned",
        "use the optimizer that was planned, or plan again with the one you use",
    )
