"""An optimizer's step on pieces is its step on DTensors; whoever looks before and after sees DTensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captures import capture
from small_models import small_model
from torch.distributed.tensor import DTensor

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.planner.memory.plans import one_device_plan
from meshwright.price.parameter import Setting

WAYS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
}


def trained(kind: str, pieces: bool, again: bool = False) -> tuple[dict[str, torch.Tensor], Any]:
    """Weights after three steps; `pieces=False`: a hook of the user's keeps the optimizer on DTensors."""
    model, batch = small_model("gpt", "float64")
    plan = one_device_plan(capture(model, batch), load_cluster("local:1").mesh((1,)), Setting(kind))
    trainer = mw.parallelize(model, plan)
    optimizer = WAYS[kind](trainer.parameters())
    seen: list[bool] = []
    if not pieces:
        optimizer.register_step_pre_hook(lambda one, args, kwargs: seen.append(type(_first(one)) is DTensor))
    for step in range(3):
        trainer.step(batch)
        optimizer.step()
        optimizer.zero_grad()
        if again and step == 1:
            state = optimizer.state_dict()
            optimizer = WAYS[kind](trainer.parameters())
            optimizer.load_state_dict(state)
    assert all(seen)
    assert type(_first(optimizer)) is DTensor
    kept = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    assert kept
    assert all(isinstance(value, DTensor) for value in kept)
    assert all(isinstance(key.data, DTensor) for key in optimizer.state)
    return {name: tensor.full_tensor().detach().clone() for name, tensor in trainer.named_parameters()}, optimizer


def _first(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    first: torch.Tensor = optimizer.param_groups[0]["params"][0].data
    return first


@pytest.mark.parametrize("kind", ["adamw", "momentum"])
def test_pieces_step_as_dtensors_do(kind: str) -> None:
    wanted, _ = trained(kind, pieces=False)
    for found in (trained(kind, pieces=True)[0], trained(kind, pieces=True, again=True)[0]):
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-14)


def test_a_step_that_fails_gives_the_parameters_back_at_the_next() -> None:
    _, optimizer = trained("adamw", pieces=True)
    group = optimizer.param_groups[0]
    betas, group["betas"] = group["betas"], None
    for parameter in group["params"]:
        parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(TypeError):
        optimizer.step()
    group["betas"] = betas
    optimizer.step()
    assert type(_first(optimizer)) is DTensor


def test_the_kernel_is_handed_plain_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, seen = torch._fused_adamw_, []

    def look(*arguments: Any, **options: Any) -> Any:
        seen.append({type(tensor) for some in arguments[:4] for tensor in some})
        return kernel(*arguments, **options)

    monkeypatch.setattr(torch, "_fused_adamw_", look)
    trained("adamw", pieces=True)
    assert seen == [{torch.nn.Parameter, torch.Tensor}] * 3
