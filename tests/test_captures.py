"""Tests share a capture only where another one would be the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captures import captured, remembering
from torch import nn

from meshwright.capture import Precision, Program
from meshwright.errors import ModelError
from meshwright.models.gpt import GPT

USUAL: dict[str, Any] = {"layers": 1, "hidden": 12, "heads": 6, "ffn": 24, "vocab": 8, "seq": 4, "tied": True}


def gpt(**changes: Any) -> GPT:
    return GPT(**(USUAL | changes))


def test_what_is_built_alike_is_captured_once() -> None:
    found: Any = remembering(lambda *_, **__: object())
    batch = {"tokens": torch.zeros(2, 4, dtype=torch.int64)}
    first = found(gpt(), batch)
    assert found(gpt(), {"tokens": torch.ones(2, 4, dtype=torch.int64)}) is first
    frozen = gpt()
    next(frozen.parameters()).requires_grad_(False)
    others = [gpt(heads=3), gpt(tied=False), gpt(dropout=0.1), gpt().double(), gpt().eval(), frozen]
    assert len({first, *(found(model, batch) for model in others)}) == 1 + len(others)
    assert found(gpt(), {"tokens": torch.zeros(3, 4, dtype=torch.int64)}) is not first
    assert found(gpt(), batch, precision="bf16") is not first
    assert found(gpt(), batch, precision="fp32", allow=()) is first, "which changes nothing"
    assert found(gpt(), batch, precision="bf16") is found(gpt(), batch, precision="mixed"), "they compute alike"
    with pytest.raises(ModelError, match="fp32 of a model"):
        found(gpt().bfloat16(), batch, precision="fp32")
    assert found(gpt(), batch, nn.functional.mse_loss) is not first


def test_what_cannot_be_told_apart_is_captured_anew() -> None:
    found: Any = remembering(lambda *_, **__: object())
    model, batch = nn.Linear(2, 2), {"x": torch.zeros(2, 2)}
    model.table = {"a": 1}
    assert found(model, batch) is not found(model, batch)


def test_precisions_that_are_taken_for_one_give_one_program() -> None:
    model, batch = nn.Linear(2, 2), {"input": torch.zeros(2, 2), "goal": torch.zeros(2, 2)}

    def program(precision: Precision | None) -> Program:
        return captured(model, batch, lambda output, goal: (output - goal).square().mean(), precision=precision)

    assert program(None) == program("fp32") != program("bf16") == program("mixed")
