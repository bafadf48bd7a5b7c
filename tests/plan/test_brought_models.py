"""Models that people bring, planned for more devices than one: what once failed while planning."""

from __future__ import annotations

import copy
from threading import Thread

import pytest
import torch
from torch import Tensor, nn

import meshwright as mw
from meshwright.errors import CaptureError, MeshwrightError


def backbone() -> nn.Module:
    """Frozen layers under a head that is trained."""
    layers = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()).requires_grad_(False) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def planned(cluster: str, **pins: str) -> mw.Plan:
    batch = {"input": torch.randn(16, 16), "y": torch.randint(0, 4, (16,))}
    return mw.plan(backbone(), batch, cluster=cluster, loss=nn.CrossEntropyLoss(), **pins)


@pytest.mark.parametrize("pin", ["", "zero=3"])
def test_a_frozen_backbone_is_planned_for_eight_gpus(pin: str) -> None:
    plan = planned("dgx-h100:1", **({"pins": pin} if pin else {}))
    assert plan.predicted.step_s > 0


def test_four_threads_plan_and_the_process_plans_afterwards() -> None:
    failures: list[MeshwrightError] = []
    plans: list[mw.Plan] = []

    def work() -> None:
        try:
            plans.append(planned("local:2"))
        except MeshwrightError as error:
            failures.append(error)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len({str(plan) for plan in [*plans, planned("local:2")]}) == 1


class Averaging(nn.Module):
    """A target network that each forward moves towards the one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Linear(16, 16)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
        return nn.functional.mse_loss(self.online(x), self.target(x))


def test_a_target_that_forward_averages_is_refused_with_what_to_do() -> None:
    with pytest.raises(CaptureError, match=r"writes to the parameter 'target\.weight'") as refused:
        mw.plan(Averaging(), {"x": torch.randn(8, 16)}, cluster="local:2")
    assert "make it a buffer" in refused.value.todo
