"""State that a forward keeps in unusual places of Python, and refusals that it would swallow: refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.capture.execute import run
from meshwright.errors import CaptureError
from tests.capture import helpers_elsewhere

LEVEL = ContextVar("LEVEL", default=0)
TURNS = count(1)


class Slotted:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class Schedule:
    """An object that is called, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return 1 / self.calls


SHARED = Schedule()


def counted(held: dict[str, int]) -> int:
    held["calls"] = held.get("calls", 0) + 1
    return held["calls"]


class Hidden(nn.Module):
    def __init__(self, middle: Callable[[Any, Tensor], Tensor], kept: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.middle, self.kept = middle, kept

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.last(self.middle(self, torch.tanh(self.first(x)))), y)


def batch() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"x": torch.randn(4, 6), "y": torch.randn(4, 3)}


def in_defaults(self: Any, h: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
    seen.append(1)
    return h * len(seen)


def in_a_context(self: Any, h: Tensor) -> Tensor:
    LEVEL.set(LEVEL.get() + 1)
    return h * LEVEL.get()


def in_another_module(self: Any, h: Tensor) -> Tensor:
    helpers_elsewhere.CALLS += 1
    return h * helpers_elsewhere.CALLS


def in_slots(self: Any, h: Tensor) -> Tensor:
    self.kept.calls += 1
    return h * self.kept.calls


REMEMBERED: list[tuple[nn.Module, str]] = [
    (Hidden(in_defaults), "default arguments of in_defaults"),
    (Hidden(in_a_context), "LEVEL of "),
    (Hidden(in_another_module), "CALLS of tests.capture.helpers_elsewhere"),
    (Hidden(lambda self, h: helpers_elsewhere.counted(h)), "CALLS of tests.capture.helpers_elsewhere"),
    (Hidden(in_slots, Slotted()), "'kept'"),
    (Hidden(lambda self, h: h * self.kept(), Schedule()), "'kept'"),
    (Hidden(lambda self, h: h * self.kept(), partial(counted, {})), "'kept'"),
    (Hidden(lambda self, h: h * self.kept(), Schedule().__call__), "'kept'"),
    (Hidden(lambda self, h: h * SHARED()), "SHARED of "),
    (Hidden(lambda self, h: h * next(TURNS)), "TURNS of "),
]


@pytest.mark.parametrize(("model", "where"), REMEMBERED)
def test_what_is_remembered_anywhere_is_refused(model: nn.Module, where: str) -> None:
    with pytest.raises(CaptureError, match=rf"remembers .*{where}"):
        capture(model, batch())


def branch(self: Any, h: Tensor) -> Tensor:
    try:
        return h * 3 if h.sum() > 0 else h
    except Exception:
        return h


def number(self: Any, h: Tensor) -> Tensor:
    with suppress(RuntimeError):
        return h * int((h > 0).sum())
    return h


def compared(self: Any, h: Tensor) -> Tensor:
    try:
        return h * math.log(h.abs().max().item())
    except Exception:
        return h


def array(self: Any, h: Tensor) -> Tensor:
    try:
        return h * float(h.detach().numpy().max())
    except Exception:
        return h


def hooked(self: Any, h: Tensor) -> Tensor:
    with suppress(Exception):
        h.register_hook(lambda grad: grad * 2)
    return h


SWALLOWED = [
    (branch, "asks for a tensor's value, at .*test_hidden_state"),
    (number, "a Python number of a tensor's value, at .*test_hidden_state"),
    (compared, "a Python number of a tensor's value, at .*test_hidden_state"),
    (array, r"\.numpy\(\) is not supported .*, at .*test_hidden_state"),
    (hooked, "`register_hook` in the forward"),
]


@pytest.mark.parametrize(("middle", "fault"), SWALLOWED)
def test_a_forward_cannot_swallow_a_refusal(middle: Callable[[Any, Tensor], Tensor], fault: str) -> None:
    with pytest.raises(CaptureError, match=fault):
        capture(Hidden(middle), batch())


def handled(self: Any, h: Tensor) -> Tensor:
    try:
        return h.view(3, -1)
    except RuntimeError:
        return h * 2


def test_errors_that_eager_raises_too_are_the_forwards_own() -> None:
    model, given = Hidden(handled), batch()
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = run(capture(model, given), tensors, given, torch.device("cpu"))[0]
    torch.testing.assert_close(found, model(**given))
