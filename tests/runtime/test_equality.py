"""A planned run computes what the plain model computes: loss, gradients, parameters after three AdamW steps.

Loss and gradients are compared in fp32. Parameters are compared in fp64: AdamW divides a gradient by its own size,
so where the true gradient is zero (a key's bias, a weight before BatchNorm) fp32 rounding alone decides its sign.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from small_models import NAMES, small_model

from meshwright.cluster import load_cluster
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan

PINS: dict[str, Callable[[int], tuple[str, ...]]] = {
    "chosen": lambda n: ("pp=1",),
    "data": lambda n: (f"dp={n}", "zero=0"),
    "tensor": lambda n: (f"tp={n}",),
    "sharded": lambda n: (f"dp={n}", "zero=3"),
}
TWO_AXES: dict[str, Callable[[int], tuple[str, ...]]] = {
    "data x tensor": lambda n: ("dp=2", "tp=2"),
    "sharded x tensor": lambda n: ("dp=2", "tp=2", "zero=3"),
    "chosen": lambda n: ("split=matmul", "pp=1"),
}


def cases(quick_sizes: tuple[int, ...], slow: tuple[str, ...] = ()) -> Iterator[Any]:
    """Every model under every plan on 1, 2 and 3 ranks, and on 2 x 2.

    The quick tests take one plan of each model per size, a different one for each, on one rank and on 2 x 2 of one
    model; `make test-all` takes all, `slow` models among them, and ResNets on more than two ranks.
    """
    for n, name in enumerate(NAMES):
        for size in (1, 2, 3):
            for k, kind in enumerate(PINS):
                quick = (
                    name not in slow
                    and (name != "resnet" or size < 3)
                    and (name == "gpt" or size > 1)
                    and size in quick_sizes
                    and (k - n - size) % len(PINS) == 0
                )
                yield pytest.param(name, size, kind, marks=[] if quick else pytest.mark.full)
        for k, kind in enumerate(TWO_AXES):
            quick = k == n == 0 and 4 in quick_sizes
            yield pytest.param(name, 4, kind, marks=[] if quick else pytest.mark.full)


def planned(name: str, size: int, kind: str, dtype: str = "float32") -> Plan:
    model, batch = small_model(name, dtype)
    return make_plan(
        capture(model, batch), load_cluster(f"local:{size}"), pins=(PINS | TWO_AXES if size == 4 else PINS)[kind](size)
    )


def train_planned(rank: int, name: str, plan_json: bytes, dtype: str, steps: int) -> dict[str, Any]:
    """On every rank: some steps, and what a user would then see as whole tensors."""
    from meshwright.layout.record import record
    from meshwright.runtime.trainer import parallelize

    model, batch = small_model(name, dtype)
    trainer = parallelize(model, Plan.from_json(plan_json))
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3)
    local = {key: batch[key][where] for key, where in trainer.data_slice().items()}
    losses, gradients, collectives = [], {}, []
    for _ in range(steps):
        with record() as log:
            losses.append(trainer.step(local).item())
        collectives = list(log)
        gradients = {key: value.grad.full_tensor() for key, value in trainer.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    state = {key: getattr(value, "full_tensor", lambda v=value: v)() for key, value in trainer.state_dict().items()}
    return {"losses": losses, "gradients": gradients, "state": state, "collectives": collectives}


def train_plain(name: str, dtype: str, steps: int) -> dict[str, Any]:
    model, batch = small_model(name, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, gradients = [], {}
    for _ in range(steps):
        loss = model(**batch)
        loss.backward()
        losses.append(loss.item())
        gradients = {key: value.grad.clone() for key, value in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "gradients": gradients, "state": dict(model.state_dict())}


def assert_gradients_close(found: dict[str, torch.Tensor], true: dict[str, torch.Tensor]) -> None:
    """Within 1e-5 of the parameter's largest element. A key's bias has a true gradient of zero, and what is seen of
    it is rounding: elements are never held to less than 1e-9 of the largest gradient of the whole model."""
    assert found.keys() == true.keys()
    floor = 1e-9 * max(gradient.abs().max() for gradient in true.values())
    for key, gradient in true.items():
        error = (found[key] - gradient).abs().max()
        assert error <= max(1e-5 * gradient.abs().max(), floor), key


@pytest.mark.parametrize(("name", "size", "kind"), list(cases((1, 2, 3, 4))))
def test_loss_gradients_and_collectives(name: str, size: int, kind: str, ranks: Callable[[int], GlooPool]) -> None:
    plan = planned(name, size, kind)
    true = train_plain(name, "float32", 1)
    for found in ranks(size).run(train_planned, name, plan.to_json(), "float32", 1):
        assert found["losses"] == pytest.approx(true["losses"], rel=1e-6)
        assert_gradients_close(found["gradients"], true["gradients"])
        assert Counter(found["collectives"]) == Counter(plan.predicted.collectives)


@pytest.mark.parametrize(("name", "size", "kind"), list(cases((3,), slow=("gpt", "resnet"))))
def test_parameters_after_three_steps(name: str, size: int, kind: str, ranks: Callable[[int], GlooPool]) -> None:
    plan = planned(name, size, kind, "float64")
    true = train_plain(name, "float64", 3)
    for found in ranks(size).run(train_planned, name, plan.to_json(), "float64", 3):
        assert found["losses"] == pytest.approx(true["losses"], rel=1e-9)
        assert found["state"].keys() == true["state"].keys()
        for key, value in true["state"].items():
            assert torch.allclose(found["state"][key], value, rtol=1e-8, atol=1e-8), key
