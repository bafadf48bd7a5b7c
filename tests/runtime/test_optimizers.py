"""Every optimizer of torch.optim trains an adopted model as it trains a plain one, or is refused by name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from processes import GlooPool
from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor

import meshwright as mw
from meshwright.errors import RunError
from meshwright.plan import Plan

Make = Callable[[Iterable[Tensor]], optim.Optimizer]


def used(params: Iterable[Tensor]) -> list[Tensor]:
    """Those that the loss depends on."""
    return [one for one in params if one.numel() != 3]


MAKE: dict[str, Make] = {
    "Adadelta": lambda params: optim.Adadelta(params),
    "Adafactor": lambda params: optim.Adafactor(params, lr=0.1),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.1, foreach=True),
    "Adam": lambda params: optim.Adam(params, lr=0.1),
    "AdamW": lambda params: optim.AdamW(params, lr=0.1, maximize=True),
    "Adamax": lambda params: optim.Adamax(params, lr=0.1, foreach=True),
    "ASGD": lambda params: optim.ASGD(params, lr=0.1, t0=0),
    "LBFGS": lambda params: optim.LBFGS(used(params), lr=0.1, max_iter=3, line_search_fn="strong_wolfe"),
    "Muon": lambda params: optim.Muon([one for one in params if one.dim() == 2], lr=0.1),
    "NAdam": lambda params: optim.NAdam(params, lr=0.1),
    "RAdam": lambda params: optim.RAdam(params, lr=0.1),
    "RMSprop": lambda params: optim.RMSprop(params, momentum=0.9),
    "Rprop": lambda params: optim.Rprop(params),
    "SGD": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
}
REFUSED: dict[str, tuple[Make, str]] = {
    "SparseAdam": (lambda params: optim.SparseAdam(list(params)), "an optimizer of dense gradients"),
    "LBFGS over all": (lambda params: optim.LBFGS(params), "parameters that the loss depends on"),
    "amsgrad": (lambda params: optim.Adam(params, amsgrad=True), "no plan has room for more than 2"),
}


class Net(nn.Module):
    """Weights of three, two, one and no dims; its sizes are cut evenly, for LBFGS, unless told otherwise."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.layer = nn.Conv1d(4, width, 3), nn.Linear(width, 4)
        self.scale, self.idle = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = (self.layer(self.conv(x).tanh().mean(-1)) * self.scale - 1).square().mean()
        return loss


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(4, 4, 6, generator=generator).double()} for _ in range(3)]


def trained(model: nn.Module, make: Make, backward: Callable[[dict[str, Tensor]], Tensor]) -> list[float]:
    optimizer, losses = make(model.parameters()), []
    for batch in batches():

        def closure(batch: dict[str, Tensor] = batch) -> Tensor:
            optimizer.zero_grad()
            return backward(batch).detach()

        if isinstance(optimizer, optim.LBFGS):
            losses.append(float(optimizer.step(closure)))
        else:
            losses.append(closure().item())
            optimizer.step()
    assert any(one.grad is not None for one in model.parameters()), "until they are cleared"
    return losses


def eager(name: str, width: int) -> tuple[list[float], dict[str, Tensor]]:
    model = Net(width).double()

    def backward(batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = model(**batch)
        loss.backward()
        return loss

    losses = trained(model, MAKE[name], backward)
    return losses, {key: one.detach() for key, one in model.state_dict().items()}


def on_ranks(rank: int, plan_json: bytes, names: list[str], width: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    model = Net(width).double()
    first = Net(width).double().state_dict()
    trainer = mw.parallelize(model, Plan.from_json(plan_json))

    def backward(batch: dict[str, Tensor]) -> Tensor:
        return trainer.step(batch, global_batch=True)

    for name in names:
        gc.collect()  # the optimizer before it is gone: the trainer looks for another
        model.load_state_dict(first)
        losses = trained(model, MAKE[name], backward)
        found[name] = losses, {key: one.full_tensor().clone() for key, one in model.state_dict().items()}
        assert all(isinstance(one.data, DTensor) for one in model.parameters())
    for make, words in REFUSED.values():
        gc.collect()
        model.zero_grad()
        with pytest.raises(RunError, match=words):
            trained(model, make, backward)
    return found


def names_of(torch_has: Iterable[object] = tuple(vars(optim).values())) -> list[str]:
    kinds = [one for one in torch_has if isinstance(one, type) and issubclass(one, optim.Optimizer)]
    return sorted({kind.__name__ for kind in kinds} - {"Optimizer"})


def test_every_optimizer_of_torch_is_here() -> None:
    assert set(names_of()) <= MAKE.keys() | REFUSED.keys()


@pytest.mark.parametrize("pins", [("dp=2", "zero=3"), pytest.param(("tp=2",), marks=pytest.mark.full)])
def test_it_trains_as_it_trains_a_plain_model(pins: tuple[str, ...], ranks: Callable[[int], GlooPool]) -> None:
    names = [name for name in names_of() if name in MAKE]
    plan = mw.plan(Net().double(), batches()[0], cluster="local:2", pins=pins)
    for found in ranks(2).run(on_ranks, plan.to_json(), names, 8):
        for name in names:
            losses, state = eager(name, 8)
            assert found[name][0] == pytest.approx(losses, rel=1e-9), name
            for key, tensor in state.items():
                torch.testing.assert_close(found[name][1][key], tensor, rtol=1e-7, atol=1e-9, msg=f"{name}: {key}")


def test_lbfgs_over_uneven_pieces_is_refused(ranks: Callable[[int], GlooPool]) -> None:
    plan = mw.plan(Net(7).double(), batches()[0], cluster="local:2", pins=("dp=2", "zero=3"))
    with pytest.raises(AssertionError, match="of which ranks store uneven pieces"):
        ranks(2).run(on_ranks, plan.to_json(), ["LBFGS"], 7)
