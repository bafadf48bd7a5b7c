"""Values that wait on the host come back as they were, on a real link; says so when there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from meshwright.capture import capture
from meshwright.models.llama import Llama
from meshwright.plan import Plan
from meshwright.planner.one_device import fit_curves
from meshwright.runtime.fit import this_device
from meshwright.runtime.trainer import Trainer, parallelize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is here"),
]


def made() -> tuple[Llama, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = Llama(layers=6, hidden=1024, heads=8, kv_heads=8, ffn=2816, vocab=4096, tied=False, rope_base=1e4)
    return model.bfloat16(), {key: torch.randint(0, 4096, (16, 1024)) for key in ("tokens", "targets")}


def stepped(plan: Plan) -> tuple[Tensor, dict[str, Tensor], int]:
    """Loss and gradients of the second step, and the most bytes that were allocated in it."""
    model, batch = made()
    trainer: Trainer = parallelize(model, plan)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = trainer.step(batch, global_batch=True)
        grown = torch.cuda.max_memory_allocated() - before
        found = {name: entry.grad.full_tensor().clone() for name, entry in trainer.named_parameters()}
        optimizer.step()
    return loss, found, grown


@pytest.fixture
def _same_bits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Attention's gradients by a kernel that gives the same bits again; cuDNN's does not where copies run besides."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.mark.usefixtures("_same_bits")
def test_offloaded_values_come_back_as_they_were() -> None:
    model, batch = made()
    curves = fit_curves(capture(model, batch, precision="bf16"), this_device(), precision="bf16")
    flat = curves.within(None, "flat")
    budget = (flat.predicted.peak_bytes + curves.least_bytes) // 2
    away = curves.within(budget)
    assert any(choice.offload for choice in away.choices), "its link was measured"
    near = replace(away, choices=tuple(replace(choice, offload=()) for choice in away.choices))
    plain, parked = stepped(near), stepped(away)
    assert torch.equal(plain[0], parked[0])
    assert all(torch.equal(plain[1][name], gradient) for name, gradient in parked[1].items())
    assert parked[2] < plain[2]
    assert parked[2] < stepped(flat)[2] - 0.5 * (flat.predicted.peak_bytes - away.predicted.peak_bytes)
