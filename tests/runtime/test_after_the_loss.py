"""Buffers that a forward writes after it has computed the loss: what writes them belongs to the loss's segment."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from captures import capture
from torch import Tensor, nn

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.planner.memory.plans import one_device_plan
from meshwright.price.parameter import Setting


class Contrast(nn.Module):
    """Two towers against each other and against a queue of earlier keys; the mean loss is kept along."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self.written, self.query, self.key = written, nn.Linear(6, 4), nn.Linear(5, 4)
        self.register_buffer("queue", torch.randn(8, 4))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        query, key = F.normalize(self.query(x), dim=-1), F.normalize(self.key(y), dim=-1)
        loss = (query @ self.queue.clone().T).logsumexp(1).mean() + (key @ query.T).logsumexp(1).mean()
        with torch.no_grad():
            if self.written == "queue":
                self.queue.copy_(torch.cat([key.detach(), self.queue[:4]]))
            else:
                self.mean.mul_(0.9).add_(torch.tanh(loss.detach() * 2).exp(), alpha=0.1)
        return loss


def setting(written: str) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    torch.manual_seed(0)
    model = Contrast(written).double()
    return model, [{"x": torch.randn(4, 6).double(), "y": torch.randn(4, 5).double()} for _ in range(2)]


@pytest.mark.parametrize("written", ["queue", "mean"])
def test_a_buffer_written_after_the_loss_goes_on_as_in_eager(written: str) -> None:
    eager, batches = setting(written)
    model, _ = setting(written)
    program = capture(model, batches[0])
    trainer = mw.parallelize(model, one_device_plan(program, load_cluster("local:1").mesh((1,)), Setting("sgd")))
    ours, theirs = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, eager))
    for batch in batches:
        loss = eager(**batch)
        loss.backward()
        torch.testing.assert_close(trainer.step(batch), loss.detach(), rtol=1e-9, atol=0)
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    found = model.state_dict()
    for name, tensor in eager.state_dict().items():
        whole = found[name].full_tensor() if hasattr(found[name], "full_tensor") else found[name]
        torch.testing.assert_close(whole, tensor, rtol=1e-8, atol=1e-10, msg=name)
