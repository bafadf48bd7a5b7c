"""An adopted model's `state_dict`, and whole weights and buffers from it, on ranks that hold pieces or stages."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from processes import GlooPool
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import meshwright as mw
from meshwright.errors import RunError
from meshwright.plan import Plan


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()) for _ in range(2))
        self.layers = nn.Sequential(*layers).double()

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.layers(x).square().mean()
        return loss


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(4, 4, generator=generator).double()} for _ in range(2)]


def trained(model: nn.Module, backward: Callable[[dict[str, Tensor]], Any]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        backward(batch)
        optimizer.step()
        optimizer.zero_grad()


def on_ranks(rank: int, plan_json: bytes) -> dict[str, Any]:
    model = Net()
    trainer = mw.parallelize(model, Plan.from_json(plan_json))
    trained(model, lambda batch: trainer.step(batch, global_batch=True))
    with pytest.raises(RunError, match="one rank's pieces"):
        torch.save({"model": model.state_dict()}, io.BytesIO())
    if any(isinstance(one, DTensor) for one in model.layers[rank].parameters()):
        with pytest.raises(RunError, match="one rank's pieces"):
            torch.save(model.layers[rank].state_dict(), io.BytesIO())
    model.load_state_dict(model.state_dict())
    full = trainer.full_state_dict()
    file = io.BytesIO()
    torch.save(full, file)
    file.seek(0)
    plain = Net()
    plain.load_state_dict(torch.load(file))
    with trainer.gathered() as whole:
        inside = {key: tensor.clone() for key, tensor in whole.state_dict().items()}
        whole.load_state_dict(full)
    return {"full": full, "inside": inside, "outputs": trainer(batches()[0]), "keys": list(model.state_dict())}


@pytest.mark.parametrize("pin", ["zero=3", "pp=2"])
def test_whole_state_has_what_every_stage_changed(pin: str, ranks: Callable[[int], GlooPool]) -> None:
    plan = mw.plan(Net(), batches()[0], cluster="local:2", pins=(pin,))
    model = Net()
    trained(model, lambda batch: model(**batch).backward())
    true = model.state_dict()
    outputs = model.eval()(**batches()[0])
    every = list[str]()
    for found in ranks(2).run(on_ranks, plan.to_json()):
        for state in (found["full"], found["inside"]):
            assert state.keys() == true.keys()
            for key, tensor in true.items():
                torch.testing.assert_close(state[key], tensor, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found["outputs"], outputs.detach(), rtol=1e-9, atol=1e-12)
        every += found["keys"]
    if pin == "pp=2":
        assert sorted(every) == sorted(true), "each parameter and each changed buffer on the stage that has it"


def a_part_is_loaded(rank: int, plan_json: bytes, given: dict[str, Tensor]) -> dict[str, Tensor]:
    model = Net()
    trainer = mw.parallelize(model, Plan.from_json(plan_json))
    model.layers[1].load_state_dict(given)
    return trainer.full_state_dict()


@pytest.mark.parametrize("pin", ["zero=3", "pp=2"])
def test_whole_weights_are_loaded_into_a_part_of_the_model(pin: str, ranks: Callable[[int], GlooPool]) -> None:
    model = Net()
    plan = mw.plan(Net(), batches()[0], cluster="local:2", pins=(pin,))
    given = {key: value + 1 for key, value in model.layers[1].state_dict().items()}
    model.layers[1].load_state_dict(given)
    for found in ranks(2).run(a_part_is_loaded, plan.to_json(), given):
        for key, tensor in model.state_dict().items():
            assert torch.equal(found[key], tensor), key


def test_a_part_on_one_rank_has_plain_tensors() -> None:
    model = Net()
    mw.parallelize(model, mw.plan(Net(), batches()[0], cluster="local:1"))
    state = model.layers[0].state_dict()
    assert not any(isinstance(value, DTensor) for value in state.values())
    Net().layers[0].load_state_dict(state)


def adopted_again(rank: int, first: bytes, second: bytes, given: dict[str, Tensor]) -> dict[str, Tensor]:
    model = Net()
    mw.parallelize(model, Plan.from_json(first))
    trainer = mw.parallelize(model, Plan.from_json(second))
    model.load_state_dict(given)
    return trainer.full_state_dict()


def test_a_model_that_is_adopted_again_takes_whole_weights(ranks: Callable[[int], GlooPool]) -> None:
    plans = [mw.plan(Net(), batches()[0], cluster="local:2", pins=(pin,)).to_json() for pin in ("zero=3", "tp=2")]
    given = {key: value + 1 for key, value in Net().state_dict().items()}
    for found in ranks(2).run(adopted_again, *plans, given):
        for key, tensor in given.items():
            assert torch.equal(found[key], tensor), key
