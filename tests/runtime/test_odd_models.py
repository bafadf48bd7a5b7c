"""Models a user may bring: each runs like the plain model on one rank, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captures import capture
from processes import GlooPool
from torch import Tensor, nn

from meshwright.cluster import load_cluster
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan


class Recurrent(nn.Module):
    """`gru_cell` traces to ops that write in place: backward must see the values from before."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.zeros_like(x[:, 0])
        for step in range(3):
            hidden = self.cell(x[:, step], hidden)
        return F.mse_loss(self.head(hidden), y)


class BuiltinNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.max = nn.Linear(8, 4)
        self.unused = nn.ModuleList([None, nn.Linear(3, 3)])  # type: ignore[list-item]

    def forward(self, input: Tensor, id: Tensor) -> Tensor:
        return F.mse_loss(self.max(input), id)


class UnevenHead(nn.Module):
    """Seven outputs divide by nothing: under `tp` the layer is split over its input, its bias added once."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 7)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(F.relu(self.body(x))), y)


class Turned(nn.Module):
    """A BatchNorm's result on a CPU has other strides than its trace was promised."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        turned = self.norm(self.body(x).transpose(1, 2)).transpose(1, 2)
        return F.mse_loss(self.head(turned).mean(1), y)


class Frozen(nn.Module):
    """A BatchNorm that is told to keep its statistics in a model that trains, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.frozen, self.head = nn.BatchNorm2d(6), nn.Linear(6, 4)
        self.frozen.running_mean.normal_()
        self.frozen.eval()
        self.register_buffer("scale", torch.full((6, 1, 1), 0.5), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.frozen(self.norm(self.body(x)).relu()) * self.scale
        return F.mse_loss(self.head(found.mean((2, 3))), y)


class Layered(nn.Module):
    """Recurrent layers on each other: their states come layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(8, 6, num_layers=2, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.layers(x)[0][:, -1]), y)


class SharedLayer(nn.Module):
    """A layer that runs three times (as ALBERT's does): more weights than can be combined freely are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x)
        return F.mse_loss(self.head(x.mean(1)), y)


def setting(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    if name == "recurrent":
        return Recurrent().double(), {"x": torch.randn(4, 3, 8).double(), "y": torch.randn(4, 4).double()}
    if name == "frozen":
        return Frozen().double(), {"x": torch.randn(4, 3, 8, 8).double(), "y": torch.randn(4, 4).double()}
    if name == "layered":
        return Layered().double(), {"x": torch.randn(4, 5, 8).double(), "y": torch.randn(4, 4).double()}
    if name == "shared layer":
        return SharedLayer().double(), {"x": torch.randn(4, 6, 8).double(), "y": torch.randn(4, 4).double()}
    if name == "turned":
        return Turned().double(), {"x": torch.randn(4, 5, 8).double(), "y": torch.randn(4, 4).double()}
    if name == "builtin names":
        return BuiltinNames().double(), {"input": torch.randn(4, 8).double(), "id": torch.randn(4, 4).double()}
    return UnevenHead().double(), {"x": torch.randn(4, 8).double(), "y": torch.randint(0, 7, (4,))}


def run_planned(rank: int, name: str, plan_json: bytes) -> dict[str, Any]:
    from meshwright.runtime.trainer import parallelize

    model, batch = setting(name)
    trainer = parallelize(model, Plan.from_json(plan_json))
    loss = trainer.step(batch, global_batch=True)
    gradients = {key: value.grad.full_tensor() for key, value in trainer.named_parameters()}
    return {"loss": loss.item(), "gradients": gradients, "names": set(trainer.state_dict())}


NAMES = ("recurrent", "layered", "builtin names", "uneven head", "turned", "frozen", "shared layer")
SPLIT = ("uneven head", "turned")
"""Trained under `tp` in the quick tests; in `make test-all` all are."""


@pytest.mark.parametrize(
    ("name", "pin"),
    [
        pytest.param(name, pin, marks=pytest.mark.full if pin == "tp=2" and name not in SPLIT else ())
        for name in NAMES
        for pin in ("dp=2", "tp=2")
    ],
)
def test_an_odd_model_equals_itself(name: str, pin: str, ranks: Callable[[int], GlooPool]) -> None:
    model, batch = setting(name)
    plan = make_plan(capture(model, batch), load_cluster("local:2"), pins=(pin,))
    loss = model(**batch)
    loss.backward()
    for found in ranks(2).run(run_planned, name, plan.to_json()):
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-9)
        assert found["names"] == set(model.state_dict()), "parameters that nothing uses are kept"
        for key, gradient in found["gradients"].items():
            torch.testing.assert_close(gradient, dict(model.named_parameters())[key].grad, rtol=1e-8, atol=1e-10)
