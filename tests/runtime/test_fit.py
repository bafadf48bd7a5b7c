"""`mw.fit`: at every budget the plain model's numbers, less kept the smaller the budget; an impossible one is named."""

from __future__ import annotations

import copy
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from small_models import small_model
from torch import Tensor, nn

import meshwright as mw
from meshwright.cluster.device_table import GPUS
from meshwright.errors import PlanError
from meshwright.runtime.fit import REFERENCE, fit_plan, this_device

HERE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where `mw.fit` trains, and so where the plain model is to run."""


@cache
def budgets(name: str) -> tuple[int, list[int]]:
    """(the least that does, budgets from ample to the least)."""
    model, batch = small_model(name, "float64")
    ample = fit_plan(model, batch, None, device=this_device()).predicted.peak_bytes
    with pytest.raises(PlanError, match="no plan fits") as caught:
        fit_plan(model, batch, 1024, device=this_device())
    least = int(caught.value.expected.split(" bytes")[0].removeprefix("at least ").replace(",", ""))
    return least, [ample, (2 * ample + least) // 3, (ample + 2 * least) // 3, least]


def train(name: str, memory: int) -> tuple[list[float], dict[str, Tensor], mw.Plan, int]:
    """(losses of three steps, weights after them, the plan, bytes that forward kept for backward)."""
    model, batch = small_model(name, "float64")
    trainer = mw.fit(model, batch, memory)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        losses.append(trainer.step(batch).item())
        optimizer.step()
        optimizer.zero_grad()
    weights = {key: tensor.full_tensor().clone() for key, tensor in trainer.named_parameters()}
    return losses, weights, trainer.plan, kept_bytes(trainer, batch)


def kept_bytes(trainer: mw.Trainer, batch: dict[str, Tensor]) -> int:
    """Tensors alive between the last forward and the first backward of a step, each storage once."""
    found = []
    calls, segments = trainer._interpreter.calls, trainer._interpreter.segments
    backward, shared_values = calls["backward"], segments.shared_values
    made: list[Tensor] = []

    def note(*arguments: object) -> dict[str, Tensor]:
        given = shared_values(*arguments)
        made.extend(given.values())
        return given

    def look(index: int, micro: object) -> None:
        if not found:
            tensors = [t for saved in micro.saved.values() for t in saved]
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
            outside = {t.untyped_storage().data_ptr() for t in made}
            found.append(sum(size for pointer, size in storages.items() if pointer not in outside))
        backward(index, micro)

    calls["backward"], segments.shared_values = look, note
    trainer.step(batch)
    return found[0]


def plain(name: str) -> tuple[list[float], dict[str, Tensor]]:
    model, batch = small_model(name, "float64")
    model, batch = copy.deepcopy(model).to(HERE), {key: tensor.to(HERE) for key, tensor in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = model(**batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, {key: parameter.detach() for key, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt", marks=pytest.mark.full)])
def test_every_budget_trains_as_the_plain_model_does(name: str) -> None:
    losses, weights = plain(name)
    _, limits = budgets(name)
    seen = []
    for limit in limits:
        found, trained, plan, kept = train(name, limit)
        assert plan.predicted.peak_bytes <= limit
        assert found == pytest.approx(losses, rel=1e-12)
        for key, tensor in weights.items():
            torch.testing.assert_close(trained[key], tensor, rtol=1e-8, atol=1e-10)
        seen.append(kept)
    assert seen[0] > 1.5 * seen[-1], "less is kept where there is less room"
    assert seen == sorted(seen, reverse=True)


@pytest.mark.full
def test_batch_norm_is_updated_once_a_step() -> None:
    model, batch = small_model("resnet")
    ample = fit_plan(model, batch, None, device=this_device()).predicted.peak_bytes
    trainer = mw.fit(model, batch, int(0.8 * ample), copy=True)
    assert trainer.plan.recomputes
    trainer.step(batch)
    true = copy.deepcopy(model).to(HERE)
    true(**{key: tensor.to(HERE) for key, tensor in batch.items()})
    found = trainer.state_dict()
    for key, buffer in true.named_buffers():
        torch.testing.assert_close(found[key], buffer, rtol=1e-5, atol=1e-6)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.3)) for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def test_dropout_replays() -> None:
    torch.manual_seed(0)
    model, batch = Dropped(), {"x": torch.randn(16, 32)}
    ample = mw.fit(model, batch, "1GiB", copy=True)
    with pytest.raises(PlanError) as caught:
        mw.fit(model, batch, 1024, pins="microbatch=1")
    least = int(caught.value.expected.split(" bytes")[0].removeprefix("at least ").replace(",", ""))
    tight = mw.fit(model, batch, least, pins="microbatch=1")
    assert any(choice.recompute for choice in tight.plan.choices)
    assert torch.equal(ample.step(batch), tight.step(batch))
    for (_, left), (_, right) in zip(ample.named_parameters(), tight.named_parameters(), strict=True):
        assert torch.equal(left.grad.full_tensor(), right.grad.full_tensor())


@pytest.mark.full
def test_the_least_that_is_named_does_on_a_gpu_too() -> None:
    """Where an allocator may lose a part of the budget."""
    model, batch = small_model("llama", "float64")
    device = GPUS[REFERENCE].device
    with pytest.raises(PlanError, match="may be lost by the allocator") as caught:
        fit_plan(model, batch, 1024, device=device)
    least = int(caught.value.expected.split(" bytes")[0].removeprefix("at least ").replace(",", ""))
    assert fit_plan(model, batch, least, device=device).memory_bytes == least
    with pytest.raises(PlanError, match=f"{least:,}"):
        fit_plan(model, batch, int(0.99 * least), device=device)


def test_a_plan_says_what_is_recomputed_and_comes_back_from_json() -> None:
    model, batch = small_model("llama", "float64")
    _, limits = budgets("llama")
    plan = fit_plan(model, batch, limits[1], device=this_device())
    assert "activation checkpointing" in str(plan)
    assert mw.Plan.from_json(plan.to_json()) == plan


class Idle(nn.Module):
    """A layer, and parameters that the loss does not depend on: one of them under two names."""

    def __init__(self, idle: int) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        if idle:
            self.one = nn.Parameter(torch.ones(idle))
            self.other, self.third = self.one, nn.Parameter(torch.ones(idle))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().mean()


def test_parameters_that_nothing_reads_are_in_the_peak() -> None:
    batch = {"x": torch.randn(4, 8)}
    without, beside = (fit_plan(Idle(idle), batch, None, device=this_device()).predicted for idle in (0, 1000))
    assert beside.static_bytes - without.static_bytes == 8000
    assert beside.peak_bytes - without.peak_bytes == 8000
    with pytest.raises(PlanError, match="no plan fits"):
        fit_plan(Idle(1000), batch, without.peak_bytes, device=this_device())


@pytest.mark.parametrize(
    ("called", "device"),
    [("NVIDIA H200", "H200-SXM-141GB"), ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"), ("NVIDIA Unheard", REFERENCE)],
)
def test_this_device_is_the_one_that_torch_names(called: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 was once taken for an H200 NVL, of whose link to the host nothing is known."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: called)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 << 30))
    monkeypatch.setattr("meshwright.runtime.fit.launch_s", lambda _: 5e-6)
    assert this_device().name == device
