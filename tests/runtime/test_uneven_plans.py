"""Plans that cut sizes into pieces of several lengths, on real ranks: what one process computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from torch import Tensor

from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.layout import Layout
from meshwright.models.gpt import GPT
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.report.code import code

SIZES = {"odd": (2, 24, 3, 1001, 2003, 5, True), "untied": (2, 26, 2, 335, 1009, 7, False)}
"""Layers, hidden, heads, ffn, vocabulary, sequence, tied: 3, 4 or 5 divide few of them."""

QUICK = [("odd", 3, ("tp=3",), 4)]
MATRIX = [
    (name, size, pins, 4)
    for name in SIZES
    for size, pins in [
        (2, ("tp=2",)),
        (2, ("tp=2", "sp=on")),
        (3, ("tp=3",)),
        (3, ("zero=3",)),
        (3, ("tp=3", "microbatch=2")),
        (4, ("tp=4",)),
        (4, ("mesh=4", "tp=4")),
        (4, ("dp=2", "tp=2")),
        (4, ("dp=2", "tp=2", "zero=3")),
        (4, ("dp=2", "tp=2", "zero=2", "microbatch=2")),
        (4, ("pp=2", "tp=2", "microbatch=2")),
    ]
] + [("odd", 5, ("dp=5", "zero=3"), 5), ("untied", 5, ("dp=5", "zero=2"), 5), ("odd", 5, ("tp=5",), 5)]


def setting(name: str, samples: int) -> tuple[GPT, dict[str, Tensor]]:
    torch.manual_seed(0)
    sizes = SIZES[name]
    tokens, targets = torch.randint(0, sizes[4], (2, samples, sizes[5]))
    return GPT(*sizes).double(), {"tokens": tokens, "targets": targets}


@cache
def program_of(name: str, samples: int) -> Program:
    return capture(*setting(name, samples))


def is_uneven(program: Program, plan: Plan) -> bool:
    """Whether some parameter is cut into pieces of several lengths."""
    for parameter in program.parameters:
        entry, sizes = plan.parameters[parameter.name], plan.home(program, parameter.name).mesh.sizes
        for text in (entry.storage, entry.compute):
            if not Layout.parse(text).is_even(parameter.type.sizes, sizes):
                return True
    return False


def run_planned(rank: int, name: str, samples: int, plan_json: bytes) -> dict[str, Any]:
    from meshwright.runtime.trainer import parallelize

    model, batch = setting(name, samples)
    trainer = parallelize(model, Plan.from_json(plan_json))
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-2)
    losses, gradients = [], {}
    for _ in range(3):
        losses.append(trainer.step(batch, global_batch=True).item())
        gradients = gradients or {key: value.grad.full_tensor() for key, value in trainer.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    after = {key: value.full_tensor().detach() for key, value in trainer.named_parameters()}
    return {"losses": losses, "gradients": gradients, "after": after}


@pytest.mark.parametrize(
    ("name", "size", "pins", "samples"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.full) for one in MATRIX)]
)
def test_an_uneven_plan_equals_one_process(
    name: str, size: int, pins: tuple[str, ...], samples: int, ranks: Callable[[int], GlooPool]
) -> None:
    program = program_of(name, samples)
    plan = make_plan(program, load_cluster(f"local:{size}"), pins=pins)
    if (name, size, pins, samples) in QUICK:
        assert is_uneven(program, plan)
        assert f"what rank {size - 1} of {size} runs" in code(program, plan, size - 1), "ranks differ, and it says so"
    model, batch = setting(name, samples)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, gradients = [], {}
    for _ in range(3):
        loss = model(**batch)
        loss.backward()
        losses.append(loss.item())
        gradients = gradients or {key: value.grad.clone() for key, value in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    for found in ranks(size).run(run_planned, name, samples, plan.to_json()):
        assert found["losses"] == pytest.approx(losses, rel=1e-9)
        assert len(plan.stages) > 1 or set(found["gradients"]) == set(gradients)
        for key, gradient in found["gradients"].items():
            torch.testing.assert_close(gradient, gradients[key], rtol=1e-8, atol=1e-10)
        for key, value in found["after"].items():
            torch.testing.assert_close(value, model.get_parameter(key).detach(), rtol=1e-7, atol=1e-9)
