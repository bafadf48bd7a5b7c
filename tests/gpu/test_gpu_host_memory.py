"""Optimizer state and weights in the host's memory: same numbers, less of the card; says so without a GPU."""

from __future__ import annotations

import gc

import pytest
import torch

import meshwright as mw
from meshwright.models.llama import Llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is here"),
]


def trained(way: str) -> tuple[list[float], int]:
    """Losses of three steps, and the most bytes that were allocated in the last."""
    gc.collect()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama(layers=4, hidden=1024, heads=8, kv_heads=8, ffn=2816, vocab=4096, tied=False, rope_base=1e4)
        batch = {key: torch.randint(0, 4096, (4, 256)) for key in ("tokens", "targets")}
    pins = (f"offload={way}", "recompute=keep", "microbatch=1")
    trainer = mw.fit(model, batch, "40GiB", precision="mixed", pins=pins)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    losses = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        losses.append(trainer.step(batch).item())
        optimizer.step()
    return losses, torch.cuda.max_memory_allocated()


def test_what_waits_on_the_host_is_updated_as_on_the_card() -> None:
    plain, most = trained("none")
    for way in ("optimizer", "weights"):
        losses, peak = trained(way)
        assert losses == plain, way
        assert peak < most, way
        most = peak
