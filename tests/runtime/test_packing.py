"""Weights that came in memory with holes are packed; gradients lie as their parameters do."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from processes import GlooPool
from torch import nn
from torch.distributed.tensor import DTensor

import meshwright as mw
from meshwright.plan import Plan
from meshwright.runtime.weights import packing

MIB = 1 << 20


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        found: torch.Tensor = self.last(self.second(self.first(x).relu()).mean((2, 3))).square().sum()
        return found


def model_and_batch() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = Convolutions().double().to(memory_format=torch.channels_last)
    return model, {"x": torch.randn(4, 4, 6, 6, dtype=torch.float64)}


def steps(rank: int, plan_json: bytes, holes: bool) -> dict[str, list[torch.Tensor]]:
    """Two steps of SGD: the gradients of each, and whether they lie as the parameters."""
    model, batch = model_and_batch()
    with patch("meshwright.runtime.weights.store.has_holes", lambda device: holes):
        trainer = mw.parallelize(model, Plan.from_json(plan_json))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    found: dict[str, list[torch.Tensor]] = {name: [] for name, _ in model.named_parameters()}
    for _ in range(2):
        trainer.step(batch, global_batch=True)
        for name, parameter in model.named_parameters():
            assert isinstance(parameter.grad, DTensor)
            assert isinstance(parameter, DTensor)
            assert parameter.grad.to_local().stride() == parameter.to_local().stride(), name
            found[name].append(parameter.grad.full_tensor())
        optimizer.step()
        optimizer.zero_grad()
    return found


def eager() -> dict[str, list[torch.Tensor]]:
    model, batch = model_and_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    found: dict[str, list[torch.Tensor]] = {name: [] for name, _ in model.named_parameters()}
    for _ in range(2):
        model(**batch).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            found[name].append(parameter.grad.clone())
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize(("size", "pins", "holes"), [(1, (), False), (1, (), True), (2, ("zero=3",), True)])
def test_gradients_lie_as_their_parameters(
    size: int, pins: tuple[str, ...], holes: bool, ranks: Callable[[int], GlooPool]
) -> None:
    plan = mw.plan(*model_and_batch(), cluster=f"local:{size}", pins=pins, optimizer="sgd").to_json()
    for found in ranks(size).run(steps, plan, holes):
        for name, gradients in eager().items():
            for mine, theirs in zip(found[name], gradients, strict=True):
                torch.testing.assert_close(mine, theirs)


def test_packed_tensors_have_new_memory_and_the_old_is_let_go() -> None:
    one, two = torch.randn(3, 4), torch.arange(5)
    held = {"one": one, "two": two}
    found = packing.packed(held, torch.device("cpu"))
    assert not held
    assert list(found) == ["one", "two"]
    for mine, theirs in ((found["one"], one), (found["two"], two)):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()


def test_what_is_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole segments are given back first; then what is reserved and not allocated is held by weights."""
    said = {"reserved_bytes.all.current": 4400 * MIB, "allocated_bytes.all.current": 2200 * MIB}
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: said)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: said["reserved_bytes.all.current"])
    assert packing.has_holes(torch.device("cuda"))
    assert emptied
    said["reserved_bytes.all.current"] = 2240 * MIB
    assert not packing.has_holes(torch.device("cuda"))
    assert not packing.has_holes(torch.device("cpu"))
