"""Compiled units compute what eager ones do. In one file: what torch sets up for the first is not paid again."""

from __future__ import annotations

import pytest
import torch
from captures import capture
from torch import Tensor, nn

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.errors import RunError
from meshwright.generate.accumulate import Adder
from meshwright.planner.memory.plans import one_device_plan


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2)) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_a_compiled_run_computes_the_same() -> None:
    torch.manual_seed(0)
    model, batch = Layers().double(), {"x": torch.randn(6, 16, dtype=torch.float64)}
    plan = one_device_plan(capture(model, batch), load_cluster("local:1").mesh((1,)))
    found = {}
    for unit in (False, "run"):
        trainer = mw.parallelize(model, plan, compile=unit)
        found[unit] = [trainer.step(batch).item(), trainer.step(batch).item()]
        found[unit] += [p.grad.to_local().clone() for p in trainer.parameters()]
        model.zero_grad()
    assert trainer._interpreter.parts[0].generated.runs
    torch.testing.assert_close(found["run"], found[False], rtol=1e-10, atol=1e-13)
    with pytest.raises(RunError, match="compile='all'"):
        mw.parallelize(model, plan, compile="all")


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_a_compiled_sum_of_gradients_is_in_place_and_in_single_precision_whatever_the_strides() -> None:
    add = Adder(64 * 8, torch.bfloat16, "cpu")
    scale = torch.tensor(1 / 3)
    for turned in (False, True):
        total, gradient = torch.randn(64, 8), torch.randn(64, 8).bfloat16()
        if turned:
            total, gradient = total.t(), gradient.t()
        expected = total.double() + gradient.double() * scale.double()
        place = total.data_ptr()
        add(total, gradient, scale)
        assert total.data_ptr() == place
        torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=1e-6)
