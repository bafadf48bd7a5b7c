"""Gradients of what several ranks store alike: pieces are summed over them once a step, not once a micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from torch import Tensor

from meshwright.cluster import load_cluster
from meshwright.models.gpt import GPT
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan

COUNT = 64
"""Bytes of what ranks tell each other besides gradients, at most."""


def model_and_batch() -> tuple[torch.nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    tokens, targets = torch.randint(0, 96, (2, 8, 12))
    return GPT(layers=2, hidden=16, heads=2, ffn=32, vocab=96, seq=12, tied=True), {
        "tokens": tokens,
        "targets": targets,
    }


def two_steps(rank: int, plan_json: bytes) -> dict[str, Any]:
    """Gradients after one step, and after a second that adds to them."""
    from meshwright.layout.record import record
    from meshwright.runtime.trainer import parallelize

    model, batch = model_and_batch()
    trainer = parallelize(model, Plan.from_json(plan_json))
    with record() as log:
        loss = trainer.step(batch, global_batch=True).item()
    first = {key: value.grad.full_tensor().clone() for key, value in trainer.named_parameters()}
    trainer.step(batch, global_batch=True)
    second = {key: value.grad.full_tensor() for key, value in trainer.named_parameters()}
    return {"loss": loss, "log": log, "first": first, "second": second}


@pytest.mark.parametrize(
    "pins",
    [
        ("mesh=2x2", "dp=4", "zero=3:2", "microbatch=2"),
        pytest.param(("mesh=2x2", "dp=4", "zero=2:2", "microbatch=2"), marks=pytest.mark.full),
        pytest.param(("mesh=2x2", "dp=4", "zero=1:2", "microbatch=2"), marks=pytest.mark.full),
        pytest.param(("mesh=2x2", "dp=2", "tp=2", "sp=on", "zero=3", "microbatch=2"), marks=pytest.mark.full),
    ],
)
def test_replicas_are_summed_once_a_step(pins: tuple[str, ...], ranks: Callable[[int], GlooPool]) -> None:
    model, batch = model_and_batch()
    plan = make_plan(capture(model, batch), load_cluster("local:4"), pins=pins)
    loss = model(**batch)
    loss.backward()
    for found in ranks(4).run(two_steps, plan.to_json()):
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert Counter(found["log"]) == Counter(plan.predicted.collectives)
        if "dp=4" in pins:
            summed = [
                one for one in found["log"] if one.kind == "all_reduce" and one.axis == "dp" and one.bytes > COUNT
            ]
            assert sum(one.bytes for one in summed) <= 4 * sum(p.numel() for p in model.parameters()) // 2
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            bound = 2e-5 * parameter.grad.abs().max() + 1e-7
            assert (found["first"][name] - parameter.grad).abs().max() <= bound, name
            assert (found["second"][name] - 2 * parameter.grad).abs().max() <= 2 * bound, name
