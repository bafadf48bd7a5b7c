"""Rotor's nested orders at run time: the plain model's numbers, within what was planned, where nothing else fits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import meshwright as mw
from meshwright.errors import PlanError
from meshwright.plan.order import parse_order
from meshwright.runtime.fit import fit_plan, this_device
from meshwright.schedule.nested import drops

WIDTH, DEPTH, ROWS = 32, 10, 256
WHOLE = "microbatch=1"
"""In one piece: the same sums in the same order."""


class Deep(nn.Module):
    """Layers whose inputs are most of what is kept: narrow weights, many rows; dropout and running statistics."""

    def __init__(self, statistics: bool = False) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(WIDTH) if statistics else nn.Identity()
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2)) for _ in range(DEPTH)]
        self.layers = nn.Sequential(*layers[:4], norm, *layers[4:])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def made(statistics: bool = False) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Deep(statistics).double(), {"x": torch.randn(ROWS, WIDTH, dtype=torch.float64)}


def least(model: nn.Module, batch: dict[str, Tensor], method: str) -> int:
    with pytest.raises(PlanError, match="no plan fits") as caught:
        fit_plan(model, batch, 1024, device=this_device(), method=method, pins=WHOLE)
    return int(caught.value.expected.split(" bytes")[0].removeprefix("at least ").replace(",", ""))


def gradients(trainer: mw.Trainer, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    loss = trainer.step(batch)
    return loss, {name: entry.grad.full_tensor() for name, entry in trainer.named_parameters()}  # type: ignore[union-attr]


def test_less_than_all_inputs_is_enough_and_computes_the_same() -> None:
    model, batch = made()
    flat = mw.fit(model, batch, "1GiB", method="flat", copy=True)
    true = gradients(flat, batch)
    smallest = least(model, batch, "auto")
    tight = mw.fit(model, batch, smallest, pins=WHOLE)
    assert tight.plan.order, "no flat plan fits"
    with pytest.raises(PlanError, match="no plan fits"):
        fit_plan(model, batch, smallest, device=this_device(), method="flat", pins=WHOLE)
    assert any(step.startswith("pass ") for step in tight.plan.order)
    assert "run forward more than once" in str(tight.plan)
    assert tight.plan.predicted.peak_bytes <= smallest
    assert mw.Plan.from_json(tight.plan.to_json()) == tight.plan
    tight.count_bytes()
    flat.count_bytes()
    for _ in range(2):
        found = gradients(tight, batch)
        assert torch.equal(found[0], true[0])
        assert all(torch.equal(found[1][name], true[1][name]) for name in true[1])
        tight.steps = 0
        for entry in tight.parameters():
            entry.grad = None
    flat.step(batch)
    beside = sum(2 * entry.numel() * 8 for entry in model.parameters()) + batch["x"].numel() * 8
    assert tight.peak_bytes <= tight.plan.predicted.peak_bytes - beside, "optimizer and batch are not counted there"
    assert tight.held_bytes < 0.5 * flat.held_bytes
    assert torch.equal(tight.evaluate(batch), flat.evaluate(batch))


def test_running_statistics_are_updated_once() -> None:
    model, batch = made(statistics=True)
    plain = copy.deepcopy(model)
    smallest = least(model, batch, "auto")
    tight = mw.fit(model, batch, smallest, method="nested", pins=WHOLE)
    assert "pass 0" in tight.plan.order
    flat = mw.fit(plain, batch, "1GiB", method="flat")
    assert torch.equal(gradients(tight, batch)[0], gradients(flat, batch)[0])
    found = tight.state_dict()
    for name, buffer in flat.state_dict().items():
        if "running" in name or "tracked" in name:
            assert torch.equal(found[name], buffer)


def test_values_go_where_nothing_reads_them_before_they_are_made_again() -> None:
    steps = parse_order(
        ["pass 0", "pass 1", "forward 2", "backward 2", "pass 0", "forward 1", "backward 1", "forward 0", "backward 0"],
        3,
    )
    assert drops(steps, [(0, 1), (1, 2)]) == [[], [0], [1, 2], [], [], [0, 1], [], [0], []]
    assert drops(steps, [(0, 1), (0, 2), (1, 2)])[1] == []


@pytest.mark.parametrize(
    "order", [["forward 0"], ["backward 0", "forward 0"], ["forward 0", "pass 0", "backward 0"], ["forward 7"]]
)
def test_an_order_that_does_not_run_each_segment_is_refused(order: list[str]) -> None:
    with pytest.raises(PlanError):
        parse_order(order, 1)


def test_a_value_that_is_not_there_is_named() -> None:
    with pytest.raises(PlanError, match="what layer 0 makes"):
        drops(parse_order(["forward 1", "backward 1", "forward 0", "backward 0"], 2), [(0, 1)])
