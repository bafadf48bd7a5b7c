"""A model is adopted: its optimizer, state_dict and names mean what the trainer stores, compared with plain eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from small_models import small_model
from torch import nn
from torch.distributed.tensor import DTensor

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.errors import RunError
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan

TWO = {"zero": ("dp=2", "zero=3"), "tensor": ("tp=2",), "stages": ("pp=2",)}


def a_plan(name: str, size: int, *pins: str) -> bytes:
    return make_plan(capture(*small_model(name, "float64")), load_cluster(f"local:{size}"), pins=pins).to_json()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def eager(name: str, warm: bool = False) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of three steps, and what the model holds then. warm: after one step that is not counted."""
    model, batch = small_model(name, "float64")
    optimizer, losses = adamw(model.parameters()), []
    for _ in range(3 + warm):
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[warm:], {key: tensor.detach() for key, tensor in model.state_dict().items()}


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {
        key: (one.full_tensor() if isinstance(one, DTensor) else one).detach().clone() for key, one in state.items()
    }


def trained(rank: int, name: str, plan_json: bytes, when: str) -> dict[str, Any]:
    """The user's loop. when: the optimizer is made `before` parallelize, `after` it, or before and has `stepped`."""
    model, batch = small_model(name, "float64")
    early = adamw(model.parameters())
    if when == "stepped":
        model(**batch).backward()
        early.step()
        early.zero_grad()
    first = next(model.parameters())
    trainer = mw.parallelize(model, Plan.from_json(plan_json))
    optimizer = adamw(model.parameters()) if when == "after" else early
    losses = []
    for _ in range(3):
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    return {
        "losses": losses,
        "state": whole(model.state_dict()),
        "same": [id(one) for one in model.parameters()] == [id(one) for one in trainer.parameters()],
        "held": first.numel(),
        "names": [key for key, _ in model.named_parameters()],
    }


@pytest.mark.parametrize(
    ("plan", "when"),
    [
        ("zero", "before"),
        ("zero", "stepped"),
        ("stages", "before"),
        pytest.param("zero", "after", marks=pytest.mark.full),
        pytest.param("tensor", "after", marks=pytest.mark.full),
    ],
)
def test_the_models_own_optimizer_trains_it(plan: str, when: str, ranks: Callable[[int], GlooPool]) -> None:
    losses, true = eager("gpt", warm=when == "stepped")
    found = ranks(2).run(trained, "gpt", a_plan("gpt", 2, *TWO[plan]), when)
    state = {key: tensor for one in found for key, tensor in one["state"].items()}
    assert state.keys() == true.keys(), "tied weights under each of their names"
    for key, tensor in true.items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-7, atol=1e-9)
    for one in found:
        assert one["losses"] == pytest.approx(losses, rel=1e-9)
        assert one["same"]
        assert one["held"] == 0, "the weights that were adopted are not held twice"
    every = [key for key, _ in small_model("gpt")[0].named_parameters()]
    if plan == "stages":
        assert sorted([*found[0]["names"], *found[1]["names"]]) == sorted(every), "each on one stage"
    else:
        assert all(one["names"] == every for one in found)


def one_rank(name: str = "gpt", **options: Any) -> tuple[nn.Module, dict[str, torch.Tensor], mw.Trainer]:
    model, batch = small_model(name, "float64")
    return model, batch, mw.parallelize(model, Plan.from_json(a_plan(name, 1)), **options)


def test_running_statistics_are_the_models() -> None:
    losses, true = eager("resnet")
    model, batch, trainer = one_rank("resnet")
    name, mean = next(iter(model.named_buffers()))
    optimizer = adamw(model.parameters())
    found = []
    for _ in range(3):
        found.append(trainer.step(batch).item())
        optimizer.step()
        optimizer.zero_grad()
    assert found == pytest.approx(losses, rel=1e-9)
    for key, tensor in whole(model.state_dict()).items():
        torch.testing.assert_close(tensor, true[key], rtol=1e-6, atol=1e-9)
    assert dict(model.named_buffers())[name] is mean


def test_a_state_dict_of_plain_tensors_is_loaded() -> None:
    model, batch, trainer = one_rank()
    before = trainer.evaluate(batch).item()
    other = copy.deepcopy(small_model("gpt", "float64")[0])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    model.load_state_dict(other.state_dict())
    assert trainer.evaluate(batch).item() == pytest.approx(other(**batch).item(), rel=1e-12)
    assert trainer.evaluate(batch).item() != before
    model.load_state_dict(small_model("gpt", "float64")[0].state_dict(), assign=True)
    with pytest.raises(RunError, match="another tensor than the one that the trainer stores"):
        trainer.step(batch)


def through_dcp(rank: int, plan_json: bytes) -> tuple[float, float, dict[str, torch.Tensor]]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    model, batch = small_model("gpt", "float64")
    other = copy.deepcopy(model)
    trainer = mw.parallelize(model, Plan.from_json(plan_json))
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    set_model_state_dict(model, other.state_dict(), options=StateDictOptions(full_state_dict=True))
    found = trainer.evaluate(batch, global_batch=True).item()
    return found, other(**batch).item(), full


def test_dcp_reads_and_sets_the_model(ranks: Callable[[int], GlooPool]) -> None:
    true = small_model("gpt", "float64")[0].state_dict()
    for found, expected, full in ranks(2).run(through_dcp, a_plan("gpt", 2, *TWO["zero"])):
        assert found == pytest.approx(expected, rel=1e-12)
        assert all(torch.equal(full[key], tensor) for key, tensor in true.items())


def test_an_optimizer_over_what_the_model_had_is_refused() -> None:
    model, batch = small_model("gpt", "float64")
    had = list(model.parameters())
    trainer = mw.parallelize(model, Plan.from_json(a_plan("gpt", 1)))
    optimizer = adamw(had)
    with pytest.raises(RunError, match=r"as it was before mw\.parallelize, and trains nothing"):
        trainer.step(batch)
    del optimizer


@pytest.mark.parametrize("kind", ["copied from", "of another model"])
def test_an_optimizer_over_other_tensors_is_refused_at_the_next_step(kind: str) -> None:
    model, batch, trainer = one_rank(copy=True)
    strange = model if kind == "copied from" else small_model("gpt", "float64")[0]
    optimizer = adamw(strange.parameters())
    trainer.step(batch)
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RunError, match="that this trainer does not train"):
        trainer.step(batch)


def test_gradients_may_be_added_up() -> None:
    _, batch, trainer = one_rank()
    optimizer = adamw(trainer.parameters())
    trainer.step(batch)
    once = [parameter.grad.to_local().clone() for parameter in trainer.parameters()]  # type: ignore[union-attr]
    trainer.step(batch)
    for parameter, gradient in zip(trainer.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad.to_local(), 2 * gradient)  # type: ignore[union-attr]
    del optimizer


def test_optimizers_of_others_are_let_alone() -> None:
    from torch.optim import optimizer as module

    other = torch.optim.AdamW([nn.Parameter(torch.ones(3, 5, 7))])
    _, batch, trainer = one_rank()
    own = adamw(trainer.parameters())
    trainer.step(batch)
    assert not module._global_optimizer_pre_hooks
    assert not other._optimizer_step_pre_hooks
    assert own._optimizer_step_pre_hooks


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.idle = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).double(), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().mean()


def test_an_optimizer_over_idle_parameters_too_is_saved_and_loaded(tmp_path: Path) -> None:
    batch = {"x": torch.randn(4, 6).double()}
    plan = mw.plan(Idle(), batch)
    losses = []
    for folder in (None, tmp_path):
        model = Idle()
        trainer = mw.parallelize(model, plan)
        optimizer = adamw(model.parameters())
        if folder is not None:
            mw.load(trainer, optimizer, folder)
        for _ in range(2):
            losses.append(trainer.step(batch).item())
            optimizer.step()
            optimizer.zero_grad()
        if folder is None:
            mw.save(trainer, optimizer, tmp_path)
            losses.append(trainer.evaluate(batch).item())
    assert losses[2] == pytest.approx(losses[3], rel=1e-12), "it goes on where it was"
    assert losses[4] < losses[3]


def averaged(rank: int, plan_json: bytes, steps: int = 3) -> dict[str, torch.Tensor]:
    """The weights, and their average by foreach ops over all of the model's parameters, idle ones too."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model, batch = Idle(), {"x": torch.linspace(-1, 1, 24).double().reshape(4, 6)}
    early = adamw(model.parameters())
    trainer = mw.parallelize(model, Plan.from_json(plan_json)) if plan_json else None
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(steps):
        if trainer is None:
            model(**batch).backward()
        else:
            trainer.step(batch, global_batch=True)
        early.step()
        early.zero_grad()
        average.update_parameters(model)
    if trainer is not None:
        assert all(isinstance(one, DTensor) for one in model.parameters())
        with torch.no_grad(), trainer.gathered() as plain:
            assert type(plain.idle.data) is torch.Tensor
            plain.idle.mul_(2)
        assert model.idle.full_tensor().tolist() == [2, 2, 2]
    return {**whole(average.state_dict()), **{f"own {key}": one for key, one in whole(model.state_dict()).items()}}


@pytest.mark.parametrize("pin", ["zero=3", "pp=2"])
def test_weights_are_averaged_where_the_loss_does_not_depend_on_some(
    pin: str, ranks: Callable[[int], GlooPool]
) -> None:
    plan = mw.plan(Idle(), {"x": torch.zeros(4, 6).double()}, cluster="local:2", pins=(pin,))
    true = averaged(0, b"")
    true["own idle"] = 2 * true["own idle"]
    found: dict[str, torch.Tensor] = {}
    for one in ranks(2).run(averaged, plan.to_json()):
        found |= one
    assert found.keys() == true.keys()
    for key, tensor in true.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-12, atol=1e-14)
