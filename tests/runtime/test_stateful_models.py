"""Models whose forward writes to buffers train on two ranks as plain PyTorch trains them in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captures import capture
from processes import GlooPool
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from meshwright.cluster import load_cluster
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan


class Writing(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(6, 8), nn.Linear(8, 4)
        self.register_buffer("centre", torch.zeros(8))
        if kind == "spectral":
            parametrizations.spectral_norm(self.first)
        if kind == "weight norm":
            parametrizations.weight_norm(self.first)
        if kind == "frozen":
            self.first.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if self.kind == "assigned":
            self.centre = 0.9 * self.centre + 0.1 * hidden.detach().mean(0)
        if self.kind == "data":
            self.centre.data.mul_(0.9).add_(hidden.data.mean(0), alpha=0.1)
        return F.mse_loss(self.last(hidden - self.centre), y)


def setting(kind: str) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    torch.manual_seed(0)
    model = Writing(kind).double()
    return model, [{"x": torch.randn(4, 6).double(), "y": torch.randn(4, 4).double()} for _ in range(3)]


def train(rank: int, kind: str, plan_json: bytes) -> tuple[list[float], dict[str, Tensor]]:
    from meshwright.runtime.trainer import parallelize

    model, batches = setting(kind)
    trainer = parallelize(model, Plan.from_json(plan_json))
    optimizer = torch.optim.SGD(trainer.parameters(), lr=0.1)
    losses = []
    for batch in batches:
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    state: dict[str, Any] = trainer.state_dict()
    return losses, {name: getattr(t, "full_tensor", lambda t=t: t)().detach() for name, t in state.items()}


@pytest.mark.parametrize("kind", ["spectral", "weight norm", "assigned", "data", "frozen"])
@pytest.mark.parametrize("pin", ["dp=2", pytest.param("tp=2", marks=pytest.mark.full)])
def test_buffers_go_on_as_in_eager(kind: str, pin: str, ranks: Callable[[int], GlooPool]) -> None:
    model, batches = setting(kind)
    plan = make_plan(capture(model, batches[0]), load_cluster("local:2"), pins=(pin,), optimizer="sgd")
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for batch in batches:
        losses.append(model(**batch))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    for found, state in ranks(2).run(train, kind, plan.to_json()):
        assert found == pytest.approx([loss.item() for loss in losses], rel=1e-9)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-8, atol=1e-10, msg=name)
