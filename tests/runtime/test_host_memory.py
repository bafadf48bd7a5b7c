"""Optimizer state and weights on the host: what plain PyTorch trains, in fractions, on any stage, saved and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from small_models import small_model
from torch.distributed.tensor import DTensor

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.errors import RunError
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.runtime.weights.hosted import GroupedStep, hosted_of

STEPS = 3
WAYS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
}


def a_plan(size: int, *pins: str, kind: str = "adamw") -> Plan:
    program = capture(*small_model("gpt", "float64"))
    return make_plan(program, load_cluster(f"local:{size}"), pins=pins, optimizer=kind)


def plain(kind: str) -> dict[str, torch.Tensor]:
    """What the model without meshwright has learned."""
    model, batch = small_model("gpt", "float64")
    optimizer = WAYS[kind](model.parameters())
    for _ in range(STEPS):
        model(**batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def trained(rank: int, plan_json: bytes, kind: str, folder: str = "") -> dict[str, torch.Tensor]:
    """With a folder, the last step is taken by a second trainer that resumes from the first one's checkpoint."""
    plan = Plan.from_json(plan_json)
    trainer, optimizer = started(plan, kind)
    for step in range(STEPS):
        if folder and step == STEPS - 1:
            mw.save(trainer, optimizer, folder)
            trainer, optimizer = started(plan, kind)
            mw.load(trainer, optimizer, folder)
        trainer.step(small_model("gpt", "float64")[1], global_batch=True)
        trainer.clip_grad_norm_(1e9)
        optimizer.step()
        optimizer.zero_grad()
    check_places(trainer, optimizer)
    with trainer.gathered() as model:
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def started(plan: Plan, kind: str) -> tuple[mw.Trainer, torch.optim.Optimizer]:
    trainer = mw.parallelize(small_model("gpt", "float64")[0], plan)
    return trainer, WAYS[kind](trainer.parameters())


def check_places(trainer: mw.Trainer, optimizer: torch.optim.Optimizer) -> None:
    """Whoever looks between steps finds DTensors, and each state where it was before."""
    for name, parameter in trainer.named_parameters():
        hosted = hosted_of(parameter)
        assert (hosted.offload if hosted else "") == trainer.plan.parameters[name].offload
        states = [value for key, value in optimizer.state[parameter].items() if key != "step"]
        assert states
        assert all(isinstance(value, DTensor) for value in states)


@pytest.mark.parametrize(
    ("kind", "pins"),
    [
        ("adamw", ("offload=optimizer:0.5",)),
        ("momentum", ("offload=weights:0.5", "microbatch=2")),
        ("adamw", ("offload=weights",)),
    ],
)
def test_one_device_trains_as_plain_pytorch(kind: str, pins: tuple[str, ...]) -> None:
    plan = a_plan(1, *pins, kind=kind)
    kinds = {entry.offload for entry in plan.parameters.values()}
    there = "weight" if "weights" in pins[0] else "optimizer"
    assert kinds == ({"", there} if ":" in pins[0] else {there})
    assert "on the host" in str(plan)
    wanted = plain(kind)
    for name, tensor in trained(0, plan.to_json(), kind).items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "pins", "resumed"),
    [
        ("adamw", ("dp=2", "zero=3", "offload=weights"), True),
        ("momentum", ("dp=2", "zero=1", "offload=optimizer:0.5"), False),
        ("adamw", ("pp=2", "microbatch=2", "offload=weights:0.5"), True),
        pytest.param("adamw", ("tp=2", "offload=optimizer"), False, marks=pytest.mark.full),
        pytest.param("adamw", ("pp=2", "microbatch=3", "offload=optimizer"), True, marks=pytest.mark.full),
        pytest.param("momentum", ("dp=2", "zero=3", "microbatch=3", "offload=weights"), False, marks=pytest.mark.full),
        pytest.param("adamw", ("dp=2", "zero=0", "offload=weights"), True, marks=pytest.mark.full),
    ],
)
def test_two_ranks_train_as_plain_pytorch(
    kind: str, pins: tuple[str, ...], resumed: bool, ranks: Callable[[int], GlooPool], tmp_path: Path
) -> None:
    plan = a_plan(2, *pins, kind=kind)
    assert any(entry.offload for entry in plan.parameters.values())
    wanted = plain(kind)
    for found in ranks(2).run(trained, plan.to_json(), kind, str(tmp_path) if resumed else ""):
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, wanted[name], rtol=1e-9, atol=1e-12)


def test_groups_are_stepped_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the state on the host, that of two segments is on the device at most."""
    plan = a_plan(1, "offload=optimizer")
    trainer, optimizer = started(plan, "adamw")
    seen: list[int] = []
    own = GroupedStep._step

    def noted(self: GroupedStep, stand_ins: Any, state: Any) -> None:
        seen.append(len(stand_ins))
        own(self, stand_ins, state)

    monkeypatch.setattr(GroupedStep, "_step", noted)
    trainer.step(small_model("gpt", "float64")[1], global_batch=True)
    optimizer.step()
    segments = len({trainer.program.uses_of(name)[0] for name in plan.parameters})
    assert seen[0] == 0, "all of it is on the host"
    assert len(seen) == 1 + segments
    assert sum(seen) == len(plan.parameters)


def test_a_hooked_optimizer_is_refused() -> None:
    trainer, optimizer = started(a_plan(1, "offload=optimizer"), "adamw")
    optimizer.register_step_post_hook(lambda *_: None)
    trainer.step(small_model("gpt", "float64")[1], global_batch=True)
    with pytest.raises(RunError, match=r"keeps optimizer state on the host"):
        optimizer.step()


def test_what_is_held_is_what_was_predicted() -> None:
    """Weights on the host: their copies come and go, gradients leave."""
    plan, trainers = a_plan(1, "offload=weights"), []
    for one in (plan, a_plan(1)):
        trainer, optimizer = started(one, "adamw")
        trainer.count_bytes()
        for _ in range(2):
            trainer.step(small_model("gpt", "float64")[1], global_batch=True)
            optimizer.step()
            optimizer.zero_grad()
        trainers.append(trainer)
    assert trainers[0].peak_bytes <= plan.predicted.peak_bytes
    assert trainers[0].peak_bytes < trainers[1].peak_bytes
