"""precision="fp16" trains as float16 copies of float32 weights under torch.amp.GradScaler do."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from captures import capture
from processes import GlooPool
from torch import Tensor, nn

import meshwright as mw
from meshwright.errors import PlanError, RunError
from meshwright.generate.chunk import check_chunkable
from meshwright.runtime.state.checkpoint import load, save

ROWS, WIDTH = 8, 16


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = (nn.Sequential(nn.Linear(WIDTH, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, WIDTH)) for _ in "abc")
        self.first, self.layers = nn.Linear(WIDTH, WIDTH), nn.ModuleList(inner)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return (x - y).float().square().mean()


def batches(count: int) -> list[dict[str, Tensor]]:
    """The third overflows at any scale above some thousands."""
    generator = torch.Generator().manual_seed(1)
    made = [{name: torch.randn(ROWS, WIDTH, generator=generator) for name in "xy"} for _ in range(count)]
    if count > 2:
        made[2]["y"] *= 3000
    return made


def model() -> Small:
    torch.manual_seed(0)
    return Small()


def trained(steps: list[dict[str, Tensor]], interval: int) -> tuple[mw.Plan, mw.Trainer, torch.optim.Optimizer]:
    plan = mw.plan(model(), steps[0], cluster="local:1", precision="fp16")
    trainer = mw.parallelize(model(), plan)
    assert trainer.loss_scale is not None
    trainer.loss_scale.interval = interval
    return plan, trainer, torch.optim.AdamW(trainer.parameters(), lr=1e-2)


def test_steps_are_grad_scalers() -> None:
    """Scales, skipped steps and weights, against torch's own scaler over float32 weights and float16 copies."""
    data = batches(8)
    _, trainer, optimizer = trained(data, interval=3)
    master = model()
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    plain = torch.optim.AdamW(master.parameters(), lr=1e-2)
    scales = []
    for batch in data:
        half = deepcopy(master).half()
        loss = half(**{name: tensor.half() for name, tensor in batch.items()})
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        for one, other in zip(master.parameters(), half.parameters(), strict=True):
            assert other.grad is not None
            one.grad = other.grad.float()
        scaler.step(plain)
        scaler.update()
        plain.zero_grad()
        assert torch.equal(trainer.step(batch, global_batch=True), loss)
        optimizer.step()
        optimizer.zero_grad()
        assert trainer.loss_scale is not None
        assert trainer.loss_scale.scale == scaler.get_scale()
        scales.append(trainer.loss_scale.scale)
    assert trainer.loss_scale.skipped >= 1, scales
    assert any(after > before for before, after in pairwise(scales)), "it has grown again"
    for (name, mine), true in zip(trainer.named_parameters(), master.parameters(), strict=True):
        assert torch.allclose(mine.full_tensor(), true, rtol=0, atol=1e-6), name  # type: ignore[attr-defined]


def test_a_skipped_step_changes_nothing() -> None:
    data = batches(3)
    _, trainer, optimizer = trained(data, interval=2000)
    trainer.step(data[0], global_batch=True)
    optimizer.step()
    optimizer.zero_grad()
    before = {name: entry.full_tensor().clone() for name, entry in trainer.named_parameters()}  # type: ignore[attr-defined]
    trainer.step(data[2], global_batch=True)
    assert all(entry.grad is None for entry in trainer.parameters())
    optimizer.step()
    for name, entry in trainer.named_parameters():
        assert torch.equal(entry.full_tensor(), before[name])  # type: ignore[attr-defined]
    assert {int(state["step"]) for state in optimizer.state.values()} == {1}


def test_the_scale_is_saved_and_goes_on(tmp_path: Path) -> None:
    data = batches(6)
    plan, trainer, optimizer = trained(data, interval=3)
    losses = []
    for number, batch in enumerate(data):
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
        if number == 3:
            save(trainer, optimizer, tmp_path)
    again = mw.parallelize(model(), plan)
    other = torch.optim.AdamW(again.parameters(), lr=1e-2)
    load(again, other, tmp_path)
    assert again.loss_scale is not None
    assert trainer.loss_scale is not None
    again.loss_scale.interval = 3
    assert again.loss_scale.scale < 65536.0
    for batch, loss in zip(data[4:], losses[4:], strict=True):
        assert again.step(batch, global_batch=True).item() == loss
        other.step()
        other.zero_grad()
    assert again.loss_scale.state_dict() == trainer.loss_scale.state_dict()


def test_what_fp16_refuses() -> None:
    data = batches(3)
    _, trainer, _ = trained(data, interval=3)
    trainer.step(data[0], global_batch=True)
    with pytest.raises(RunError, match="gradients of an earlier step"):
        trainer.step(data[0], global_batch=True)
    program = capture(model(), data[0], precision="fp16")
    with pytest.raises(PlanError, match="float16, whose gradients are kept before the loss is scaled"):
        check_chunkable(program, 2, ROWS)


def on_a_rank(rank: int, plan: bytes) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Losses, scales, weights; the third batch overflows in rows that one rank alone computes."""
    data = batches(5)
    data[2]["y"][ROWS // 2 :] /= 3000
    trainer = mw.parallelize(model(), mw.Plan.from_json(plan))
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-2)
    losses, scales = [], []
    for batch in data:
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
        assert trainer.loss_scale is not None
        scales.append(trainer.loss_scale.scale)
    with trainer.gathered() as whole:
        return losses, scales, {name: one.detach().clone() for name, one in whole.named_parameters()}


@pytest.mark.full
@pytest.mark.parametrize("pin", ["zero=3", "pp=2"])
def test_ranks_skip_together(pin: str, ranks: Callable[[int], GlooPool]) -> None:
    data = batches(1)
    alone = mw.plan(model(), data[0], cluster="local:1", precision="fp16").to_json()
    plan = mw.plan(model(), data[0], cluster="local:2", precision="fp16", pins=pin).to_json()
    [(losses, scales, weights)] = ranks(1).run(on_a_rank, alone)
    assert scales[2] < scales[1]
    for found in ranks(2).run(on_a_rank, plan):
        assert found[1] == scales
        assert torch.allclose(torch.tensor(found[0]), torch.tensor(losses), rtol=1e-3)
        assert all(torch.allclose(found[2][name], weight, atol=2e-3) for name, weight in weights.items())
