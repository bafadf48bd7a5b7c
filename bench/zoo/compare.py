"""Whether two traces are the same training, within what float32 rounding makes of three steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bench.zoo.steps import LR, Trace

LOSS, GRADIENT, FLOOR, STATE = 2e-5, 2e-4, 2e-6, 2e-5
"""Relative to the loss; to a gradient's largest element; to the largest of all gradients; to a tensor's largest."""
STEPS = 3 * LR
"""How far three steps of AdamW move an element at the most, about."""
MOVED = 2e-3
"""Of that, how much may differ."""
IN_DOUBLE = 1e-3
"""How much less of all this is allowed in float64."""


def difference(wanted: Trace, found: list[Trace], *, double: bool = False) -> str:
    """The first thing that differs, in words; nothing where all is equal. found: of all ranks."""
    part = IN_DOUBLE if double else 1.0
    for rank, trace in enumerate(found):
        for step, (mine, theirs) in enumerate(zip(trace.losses, wanted.losses, strict=True)):
            if not abs(mine - theirs) <= part * LOSS * max(abs(theirs), 1e-3):
                return f"loss of step {step} on rank {rank}: {mine:.7g} for {theirs:.7g}"
    for step, gradients in enumerate(wanted.gradients):
        if told := _gradients(gradients, [trace.gradients[step] for trace in found], part):
            return f"step {step}: {told}"
    return _states(wanted.state, [trace.state for trace in found], part)


def _gradients(wanted: Mapping[str, Tensor], found: list[dict[str, Tensor]], part: float) -> str:
    most = max((float(value.abs().max()) for value in wanted.values() if value.numel()), default=0.0)
    for name in {**wanted, **{name: 0 for each in found for name in each}}:
        theirs = wanted.get(name)
        mine = [each[name] for each in found if name in each]
        if theirs is None:
            if any(bool(value.any()) for value in mine):
                return f"gradient of {name}, where eager has none"
            continue
        allowed = part * (GRADIENT * _largest(theirs) + FLOOR * most)
        if not mine and _largest(theirs) > allowed:
            return f"no gradient of {name}, where eager has one of {_largest(theirs):.3g}"
        for value in mine:
            if not (off := _apart(value, theirs)) <= allowed:
                return f"gradient of {name} off by {off:.3g}, its largest element is {_largest(theirs):.3g}"
    return ""


def _states(wanted: Mapping[str, Tensor], found: list[dict[str, Tensor]], part: float) -> str:
    for name, theirs in wanted.items():
        mine = [each[name] for each in found if name in each]
        if not mine:
            return f"no {name} in the state"
        for value in mine:
            allowed = part * (STATE * _largest(theirs) + (MOVED * STEPS if theirs.is_floating_point() else 0))
            if not (off := _apart(value, theirs)) <= allowed:
                return f"{name} off by {off:.3g} after three steps, its largest element is {_largest(theirs):.3g}"
    return ""


def _largest(value: Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0


def _apart(mine: Tensor, theirs: Tensor) -> float:
    """The largest difference; NaN counts as equal to NaN."""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return float("inf")
    if not mine.numel() or torch.equal(mine, theirs):
        return 0.0
    wide = torch.complex128 if mine.is_complex() else torch.float64
    apart = (mine.to(wide) - theirs.to(wide)).abs()
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    return float(torch.where(same, torch.zeros_like(apart), apart).max())
