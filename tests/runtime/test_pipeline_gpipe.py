"""`mw.gpipe` trains a Sequential as one process does, and refuses by name what it cannot cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import GlooPool
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.errors import CaptureError, PlanError
from meshwright.planner.pipeline.balance import balanced_cuts
from meshwright.runtime.fit import this_device
from meshwright.runtime.gpipe import gpipe_plan

BATCH = 12


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(5)]
    return nn.Sequential(*parts, nn.Linear(16, 4)).double()


def samples(count: int = BATCH) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 16).double(), torch.randint(0, 4, (count,))


def unlike() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 4)).double()


def train(
    rank: int, options: dict[str, Any], make: Callable[[], nn.Sequential] = layers, count: int = BATCH
) -> dict[str, Any]:
    import meshwright as mw

    trainer = mw.gpipe(make(), samples(count), nn.functional.cross_entropy, **options)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        losses.append(trainer.step(samples(count), global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: entry.full_tensor().detach() for name, entry in trainer.named_parameters()}
    return {"losses": losses, "weights": weights, "cuts": [stage.end for stage in trainer.plan.stages]}


class Floored(nn.Module):
    """Asks for a tensor's value, which is the same in every step of these tests."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=-1e9) if bool((x > 1e9).any()) else x


def floored() -> nn.Sequential:
    return nn.Sequential(*layers()[:3], Floored(), *layers()[3:])


def plain(make: Callable[[], nn.Sequential] = layers, count: int = BATCH) -> tuple[list[float], dict[str, Tensor]]:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(samples(count)[0]), samples(count)[1])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, dict(model.named_parameters())


@pytest.mark.parametrize(
    "options",
    [
        {"partitions": 2, "microbatches": 4, "balance": [2, 4], "checkpoint": "except_last"},
        pytest.param(
            {"partitions": 2, "microbatches": 3, "balance": "memory", "checkpoint": "always"}, marks=pytest.mark.full
        ),
        {"partitions": 2, "microbatches": 2, "replicas": 2, "balance": "time", "checkpoint": "auto"},
        pytest.param({"partitions": 4, "microbatches": 6, "checkpoint": "never"}, marks=pytest.mark.full),
        pytest.param({"partitions": 1, "microbatches": 3, "replicas": 2}, marks=pytest.mark.full),
    ],
    ids=lambda options: " ".join(f"{key}={value}" for key, value in options.items()),
)
def test_it_trains_as_one_process(options: dict[str, Any], ranks: Callable[[int], GlooPool]) -> None:
    losses, weights = plain()
    found = ranks(options["partitions"] * options.get("replicas", 1)).run(train, options)
    assert {name for one in found for name in one["weights"]} == weights.keys()
    for one in found:
        assert one["losses"] == pytest.approx(losses, rel=1e-9)
        for name, weight in one["weights"].items():
            assert torch.allclose(weight, weights[name], rtol=1e-7, atol=1e-9), name
    if options.get("balance") == [2, 4]:
        assert found[0]["cuts"] == [2, 6]


@pytest.mark.parametrize(
    "count", [pytest.param(BATCH, id="even", marks=pytest.mark.full), pytest.param(10, id="a smaller last micro-batch")]
)
def test_modules_that_do_not_repeat_train_as_one_process(count: int, ranks: Callable[[int], GlooPool]) -> None:
    losses, weights = plain(unlike, count)
    for one in ranks(2).run(train, {"partitions": 2, "microbatches": 3, "balance": [3, 2]}, unlike, count):
        assert one["losses"] == pytest.approx(losses, rel=1e-9)
        for name, weight in one["weights"].items():
            assert torch.allclose(weight, weights[name], rtol=1e-7, atol=1e-9), name


@pytest.mark.parametrize(
    ("partitions", "replicas", "checkpoint"),
    [
        pytest.param(partitions, replicas, checkpoint, marks=() if one == two else pytest.mark.full)
        for one, (partitions, replicas) in enumerate([(3, 1), (2, 2), (1, 2), (1, 1)])
        for two, checkpoint in enumerate(["never", "except_last", "auto"])
    ],
)
def test_its_plan_is_predicted_and_priced_as_any_other(partitions: int, replicas: int, checkpoint: str) -> None:
    given = {"partitions": partitions, "replicas": replicas, "microbatches": 3, "checkpoint": checkpoint}
    plan = gpipe_plan(layers(), samples(), nn.functional.cross_entropy, device=this_device(), **given)
    found = plan.predicted
    assert min(found.step_s, found.forward_s, found.backward_s, found.optimizer_s, found.peak_bytes) > 0
    assert found.gap == 1.0
    assert "no bound known" in str(plan)
    assert plan.price(capture(layers(), samples(), nn.functional.cross_entropy)) == plan
    if partitions > 1:
        assert found.bubble > (partitions - 1) / (3 + partitions - 1) / 2
        assert all(stage.busy_s > 0 and stage.bubble_s > 0 and stage.traffic for stage in found.stages)


def test_one_partition_recomputes_where_it_would_not_fit() -> None:
    small = replace(this_device(), memory_bytes=1 << 10, reserve_bytes=0)
    given = {"partitions": 1, "microbatches": 3, "checkpoint": "auto"}
    assert gpipe_plan(layers(), samples(), nn.functional.cross_entropy, device=small, **given).recomputes


class Named(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x}


class Unnamed(nn.Module):
    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return x["x"]


class Twice(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()


class Sum(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] + pair[1]


def test_a_line_is_allowed(ranks: Callable[[int], GlooPool]) -> None:
    counts: dict[str, Any] = {"partitions": 2, "microbatches": 2}
    with pytest.raises(CaptureError) as refused:
        gpipe_plan(floored(), samples(), nn.functional.cross_entropy, **counts, device=this_device())
    line = refused.value.todo.partition("allow='")[2].partition("=")[0]
    losses, _ = plain(floored)
    for found in ranks(2).run(train, {**counts, "allow": f"{line}=False"}, floored):
        assert found["losses"] == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize(
    ("balance", "cuts"), [("time", None), ([1, 6], "1"), ([4, 3], "4")], ids=["time", "after one", "after four"]
)
def test_modules_that_do_not_repeat_are_cut_between_any_two(balance: Any, cuts: str | None) -> None:
    widths = nn.Sequential(
        nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 4)
    ).double()
    given = {"partitions": 2, "microbatches": 2, "balance": balance, "device": this_device()}
    plan = gpipe_plan(widths, samples(), nn.functional.cross_entropy, **given)
    assert len(plan.stages) == 2
    second = capture(widths, samples(), nn.functional.cross_entropy, fine=True).segments[plan.stages[1].first]
    assert cuts is None or second.name.split(".")[0] == cuts


@pytest.mark.parametrize(
    ("model", "options", "fault"),
    [
        (nn.Linear(16, 4), {}, "an nn.Sequential"),
        (layers(), {"partitions": 7}, "7 partitions of a model that can be cut in 6 pieces"),
        (layers(), {"microbatches": 13}, "13 micro-batches of 12 samples on 1 replica"),
        (layers(), {"microbatches": 13}, "give one of 1, 2, 3, 4, 6, 12 as microbatches"),
        (layers(), {"microbatches": 5}, "give one of 1, 2, 3, 4, 6, 12 as microbatches"),
        (layers(), {"replicas": 5}, "make the batch a multiple of 5"),
        (layers(), {"balance": [3, 4]}, "sum to 6"),
        (layers(), {"balance": [1, 2, 3]}, "2 numbers"),
        (layers(), {"microbatches": 0}, "microbatches=0\n  expected: a whole number from 1"),
        (layers(), {"microbatches": 2.5}, "microbatches=2.5\n  expected: a whole number from 1"),
        (layers(), {"replicas": 0}, "replicas=0\n  expected: a whole number from 1"),
        (layers(), {"optimizer": "rmsprop"}, "optimizer 'rmsprop'\n  expected: one of adamw, momentum, sgd"),
        (layers(), {"balance": "fair"}, "time, memory"),
        (layers(), {"balance": None}, "balance None\n  expected: time, memory"),
        (layers(), {"balance": [2.0, 4.0]}, "whole numbers from 1"),
        (layers(), {"checkpoint": "some"}, "except_last"),
        (
            nn.Sequential(nn.Linear(16, 16), Twice(), Sum(), nn.Linear(16, 4)),
            {"balance": [2, 2]},
            "before modules 1, 3",
        ),
        (
            nn.Sequential(nn.Linear(16, 16).requires_grad_(False), nn.Linear(16, 16), nn.Linear(16, 4)),
            {"balance": [1, 2]},
            "cuts where one value that has a gradient is handed on, before modules 2",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 4)),
            {"balance": [1, 2]},
            "cuts where one value that has a gradient is handed on, before modules 2",
        ),
        (nn.Sequential(nn.Linear(16, 16), Named(), Unnamed(), nn.Linear(16, 4)), {}, "module 1 (Named) returns a dict"),
    ],
)
def test_it_refuses_by_name(model: nn.Module, options: dict[str, Any], fault: str) -> None:
    wanted = {"partitions": 2, "microbatches": 2} | options
    with pytest.raises(PlanError) as caught:
        gpipe_plan(model.double(), samples(), nn.functional.cross_entropy, device=this_device(), **wanted)
    assert fault in str(caught.value)
    assert caught.value.todo


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 4))
def test_the_heaviest_partition_is_as_light_as_can_be(weights: Sequence[int], stages: int) -> None:
    if stages > len(weights):
        return
    places = combinations(range(1, len(weights)), stages - 1)

    def heaviest(cuts: Sequence[int]) -> int:
        return max(sum(weights[a:b]) for a, b in zip((0, *cuts[:-1]), cuts, strict=True))

    assert heaviest(balanced_cuts(weights, stages)) == min(heaviest((*place, len(weights))) for place in places)
