"""Losses that read the model: an auxiliary loss that a layer keeps of its forward, a norm of a weight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import meshwright as mw
from meshwright.errors import CaptureError


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.out = nn.Linear(4, 3).double(), nn.Linear(3, 4).double()
        self.aux_loss: Tensor | None = None
        self.losses: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        self.aux_loss = shares.mean(0).square().sum()
        found: Tensor = self.out(shares)
        return found


class Listing(Routed):
    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        self.losses.append(found.square().mean())
        return found


MODEL = Routed()
BATCH = {"x": torch.linspace(-1, 1, 16).double().reshape(4, 4), "y": torch.ones(4, 4).double()}


def by_global(output: Tensor, y: Tensor) -> Tensor:
    assert MODEL.aux_loss is not None
    return (output - y).square().mean() + MODEL.aux_loss + MODEL.out.weight.square().sum()


def by_argument(model: Any, output: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = (output - y).square().mean() + model.aux_loss + model.out.weight.square().sum()
    return loss


class Holding:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        return by_argument(self.model, output, y)

    def method(self, output: Tensor, y: Tensor) -> Tensor:
        return by_argument(self.model, output, y)


@pytest.mark.parametrize(
    "kind", ["global", "object", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("partial", "method"))]
)
def test_a_loss_may_read_the_model(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Routed()
    monkeypatch.setitem(globals(), "MODEL", model)
    holding = Holding(model)
    losses: dict[str, Callable[..., Tensor]] = {
        "global": by_global, "partial": partial(by_argument, model), "object": holding, "method": holding.method
    }  # fmt: skip
    loss = losses[kind]
    true = loss(model(BATCH["x"]), BATCH["y"])
    true.backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    trainer = mw.parallelize(model, mw.plan(model, BATCH, loss=loss), loss)
    for _ in range(2):
        model.zero_grad()
        assert trainer.step(BATCH).item() == pytest.approx(true.item(), rel=1e-12)
    for name, parameter in trainer.named_parameters():
        torch.testing.assert_close(parameter.grad.full_tensor(), gradients[name])  # type: ignore[union-attr]


def test_what_else_is_left_on_the_model_is_refused_with_what_to_do() -> None:
    model = Listing()

    def summed(output: Tensor, y: Tensor) -> Tensor:
        return (output - y).square().mean() + sum(model.losses)

    with pytest.raises(CaptureError, match=r"auxiliary losses\) the forward returns with its output"):
        mw.plan(model, BATCH, loss=summed)
    with pytest.raises(CaptureError, match="let the forward return what the loss needs"):
        mw.plan(Routed(), BATCH, loss=lambda output, y: (output - y).square().mean() + model.missing)
