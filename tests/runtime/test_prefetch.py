"""Parameters that neighbours share, gathered ahead: the same gradients, the planned collectives, no gradient lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from captures import capture
from processes import GlooPool
from torch import Tensor, nn

from meshwright.cluster import load_cluster
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan


class Again(nn.Module):
    """One block, three times in a row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)
        self.block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(3):
            x = x + self.block(x)
        return F.mse_loss(self.last(x), y)


def a_batch() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {"x": torch.randn(12, 8), "y": torch.randn(12, 8)}


def run_twice(rank: int, plan_json: bytes) -> dict[str, Any]:
    from meshwright.layout.record import record
    from meshwright.runtime.trainer import parallelize

    trainer = parallelize(Again(), Plan.from_json(plan_json))
    trainer.step(a_batch(), global_batch=True)
    kept = [parameter.grad for parameter in trainer.parameters()]
    copies = [gradient.to_local().clone() for gradient in kept]
    for parameter in trainer.parameters():
        parameter.grad = None
    with record() as log:
        trainer.step({name: tensor + 1 for name, tensor in a_batch().items()}, global_batch=True)
    same = all(torch.equal(gradient.to_local(), copy) for gradient, copy in zip(kept, copies, strict=True))
    gradients = {
        name: gradient.full_tensor() for (name, _), gradient in zip(trainer.named_parameters(), kept, strict=True)
    }
    return {"log": log, "same": same, "gradients": gradients}


def test_weights_of_neighbours_are_gathered_as_planned(ranks: Callable[[int], GlooPool]) -> None:
    model = Again()
    model(**a_batch()).backward()
    plan = make_plan(capture(Again(), a_batch()), load_cluster("local:2"), pins=("dp=2", "zero=3", "microbatches=3"))
    for found in ranks(2).run(run_twice, plan.to_json()):
        assert found["same"], "a gradient that was kept was written over"
        assert Counter(found["log"]) == Counter(plan.predicted.collectives)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found["gradients"][name], parameter.grad, rtol=2e-5, atol=1e-7)
