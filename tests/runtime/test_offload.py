"""Values that wait on the host: the plain numbers, fewer bytes held, copies where the list says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from captures import capture
from torch import Tensor

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.cost.host_link import Copies
from meshwright.models.llama import Llama
from meshwright.plan import Plan
from meshwright.plan.instruction import to_text
from meshwright.planner.memory.curves import Curves, curves
from meshwright.planner.memory.plans import one_device_plan

QUICK = Copies(1e13, 1e13)
"""A link that hides every copy of a small model."""


def made() -> tuple[Llama, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = Llama(layers=4, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=64, tied=False, rope_base=1e4).double()
    return model, {key: torch.randint(0, 64, (8, 24)) for key in ("tokens", "targets")}


@pytest.fixture(scope="module")
def found() -> Curves:
    model, batch = made()
    program, mesh = capture(model, batch), load_cluster("local:1").mesh((1,)).renamed(("rep",))
    return curves(program, one_device_plan(program, mesh), mesh.device, copies=QUICK)


@pytest.fixture(scope="module")
def budget(found: Curves) -> int:
    """Between keeping all and the least."""
    most = found.within(None, "flat").predicted.peak_bytes
    return (most + found.least_bytes) // 2


def stepped(plan: Plan) -> tuple[Tensor, dict[str, Tensor], mw.Trainer]:
    model, batch = made()
    trainer = mw.parallelize(model, plan)
    trainer.count_bytes()
    loss = trainer.step(batch)
    return loss, {name: entry.grad.full_tensor() for name, entry in trainer.named_parameters()}, trainer  # type: ignore[union-attr]


def test_a_quick_link_is_taken_instead_of_computing_again(found: Curves, budget: int) -> None:
    flat, away = found.within(budget, "flat"), found.within(budget)
    assert any(choice.offload for choice in away.choices)
    assert not any(choice.offload for choice in flat.choices)
    assert away.predicted.step_s < flat.predicted.step_s
    assert away.predicted.peak_bytes <= budget
    assert "on the host until backward" in str(away)
    assert Plan.from_json(away.to_json()) == away
    again, plain = stepped(away), stepped(found.within(None, "flat"))
    assert torch.equal(again[0], plain[0])
    assert all(torch.equal(again[1][name], gradient) for name, gradient in plain[1].items())
    parked = sum(bool(away.choice(index).offload) for index in range(len(away.segments)))
    lines = to_text(again[2].instructions).splitlines()
    assert [sum(line.startswith(kind) for line in lines) for kind in ("offload", "release", "fetch")] == [parked] * 3
    assert again[2].held_bytes < 0.8 * plain[2].held_bytes
    for entry in again[2].parameters():
        entry.grad = None
    assert torch.equal(again[2].step(made()[1]), again[0])
    states = 2 * sum(entry.numel() * 8 for entry in made()[0].parameters())
    assert again[2].peak_bytes <= away.predicted.peak_bytes - states, "the host's buffers are there from the first step"


def test_a_slow_link_is_not_worth_it(found: Curves, budget: int) -> None:
    program = found.program
    slow = curves(program, found.plan, found.plan.mesh.device, copies=Copies(1e3, 1e13))
    assert not any(choice.offload for choice in slow.within(budget).choices)
    nothing = curves(program, found.plan, found.plan.mesh.device)
    assert not nothing.offload_options, "no link was measured for this device"


def test_more_memory_is_never_slower(found: Curves) -> None:
    least, most = found.least_bytes, found.within(None, "flat").predicted.peak_bytes
    before_s = float("inf")
    for share in range(0, 11):
        plan = found.within(least + (most - least) * share // 10)
        assert plan.predicted.step_s <= before_s * (1 + 1e-12)
        before_s = plan.predicted.step_s


def test_an_unknown_value_is_refused(found: Curves, budget: int) -> None:
    plan = found.within(budget)
    choices = [replace(choice, offload=("nobody",)) for choice in plan.choices]
    with pytest.raises(mw.MeshwrightError, match=r"\.offload names nobody"):
        mw.parallelize(made()[0], replace(plan, choices=tuple(choices)))
