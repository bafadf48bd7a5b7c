"""Nested batches and plain values in them: trained as plain PyTorch does, and refused where they change."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from processes import GlooPool
from torch import Tensor, nn

import meshwright as mw
from meshwright.errors import ModelError, RunError
from meshwright.plan import Plan


class Mixed(nn.Module):
    """Takes a dict with a list and a tuple in it, a number, a flag, a name and nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(
        self, views: dict[str, Any], y: Tensor, scale: float = 1.0, kind: str = "sum", mask: Tensor | None = None
    ) -> Tensor:
        (one, other), extra = views["pair"], views["more"]["extra"]
        hidden = self.first(one) + self.second(other[0]) * scale
        hidden = hidden.relu() if kind == "relu" else hidden.tanh()
        if mask is not None:
            hidden = hidden * mask
        return (self.last(hidden + extra).squeeze(-1) - y).square().mean()


def batches(count: int = 3, scale: float = 0.5, kind: str = "relu") -> list[dict[str, Any]]:
    torch.manual_seed(1)
    return [
        {
            "views": {"pair": (torch.randn(8, 6), [torch.randn(8, 4)]), "more": {"extra": torch.randn(8, 8)}},
            "y": torch.randn(8),
            "scale": scale,
            "kind": kind,
            "mask": None,
        }
        for _ in range(count)
    ]


def model() -> nn.Module:
    torch.manual_seed(0)
    return Mixed()


def eager(given: list[dict[str, Any]]) -> list[float]:
    own, losses = model(), []
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-2)
    for batch in given:
        loss = own(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trained(rank: int, plans: list[bytes], given: list[dict[str, Any]]) -> list[float]:
    own = model()
    trainer = mw.parallelize(own, [Plan.from_json(text) for text in plans])
    optimizer, losses = torch.optim.AdamW(own.parameters(), lr=1e-2), []
    for batch in given:
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("pins", [("dp=2", "zero=3"), ("tp=2",)])
def test_a_nested_batch_trains_as_eager(pins: tuple[str, ...], ranks: Callable[[int], GlooPool]) -> None:
    plan = mw.plan(model(), batches()[0], cluster="local:2", pins=pins)
    assert Plan.from_json(plan.to_json()) == plan
    for losses in ranks(2).run(trained, [plan.to_json()], batches()):
        assert losses == pytest.approx(eager(batches()), rel=1e-5)


def test_other_values_have_plans_of_their_own() -> None:
    given = [*batches(1, 0.5), *batches(1, 2.0), *batches(1, 0.5, "tanh")]
    plans = [mw.plan(model(), batch, cluster="local:1").to_json() for batch in given]
    assert trained(0, plans, given * 2) == pytest.approx(eager(given * 2), rel=1e-5)


@cache
def planned() -> Plan:
    return mw.plan(model(), batches()[0], cluster="local:1")


def one_rank() -> mw.Trainer:
    return mw.parallelize(model(), planned())


def test_a_smaller_last_batch_and_outputs() -> None:
    trainer, whole = one_rank(), batches(1)[0]
    few = {**whole, "y": whole["y"][:4]}
    (one, other), extra = whole["views"]["pair"], whole["views"]["more"]["extra"]
    few["views"] = {"pair": (one[:4], [other[0][:4]]), "more": {"extra": extra[:4]}}
    assert trainer.step(few).item() == pytest.approx(model()(**few).item(), rel=1e-5)
    torch.testing.assert_close(trainer(few), model()(**few))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": 0.25}, "'scale' is 0.25, planned was 0.5"),
        ({"kind": "tanh"}, "'kind' is 'tanh', planned was 'relu'"),
        ({"mask": torch.ones(8, 8)}, "'mask' is a Tensor, planned was None"),
        ({"views": {"pair": (1, [2]), "less": 3}}, "'views' is a dict of pair, less, planned was a dict of pair, more"),
        ({"scale": "absent"}, "'scale' is not given, planned was 0.5"),
    ],
)
def test_what_changes_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    trainer = one_rank()
    batch = {name: entry for name, entry in {**batches(1)[0], **change}.items() if entry is not None}
    batch = {"mask": None, **batch}
    if change.get("scale") == "absent":
        del batch["scale"]
    with pytest.raises(RunError, match=words):
        trainer.step(batch)


def test_entries_that_are_neither_are_refused_at_once() -> None:
    with pytest.raises(ModelError, match=r"batch entry 'views'\['pair'\]\[0\] is a set"):
        mw.plan(model(), {**batches()[0], "views": {"pair": ({1}, 2)}}, cluster="local:1")
    with pytest.raises(ModelError, match="the batch has no tensor"):
        mw.plan(nn.Identity(), {"input": torch.tensor(0.5)}, cluster="local:1")


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        (one, other), extra = (whole := batches(2)[index // 8])["views"]["pair"], whole["views"]["more"]["extra"]
        row = index % 8
        views = {"pair": (one[row], [other[0][row]]), "more": {"extra": extra[row]}}
        return {**whole, "views": views, "y": whole["y"][row]}


def test_a_loader_reads_nested_samples() -> None:
    own = model()
    plan = mw.plan(own, batches()[0], cluster="local:1")
    trainer = mw.parallelize(own, plan)
    losses = [trainer.step(batch).item() for batch in mw.loader(Samples(), plan, shuffle=False)]
    assert losses == pytest.approx([model()(**batch).item() for batch in batches(2)], rel=1e-5)


def scaled_batches() -> list[dict[str, Any]]:
    """The scale is a tensor without dims, another one in each step."""
    return [{**batch, "scale": torch.tensor(0.5 + step)} for step, batch in enumerate(batches())]


@pytest.mark.parametrize("pins", [("dp=2", "zero=3", "microbatch=2"), pytest.param(("tp=2",), marks=pytest.mark.full)])
def test_tensors_without_dims_train_as_eager(pins: tuple[str, ...], ranks: Callable[[int], GlooPool]) -> None:
    plan = mw.plan(model(), scaled_batches()[0], cluster="local:2", pins=pins)
    assert Plan.from_json(plan.to_json()) == plan
    for losses in ranks(2).run(trained, [plan.to_json()], scaled_batches()):
        assert losses == pytest.approx(eager(scaled_batches()), rel=1e-5)


def test_tensors_without_dims_stand_beside_what_a_loader_reads() -> None:
    own, given = model(), scaled_batches()
    trainer = mw.parallelize(own, plan := mw.plan(own, given[0], cluster="local:1"))
    assert trainer.data_slice()["scale"] == ()
    losses = []
    for batch, whole in zip(mw.loader(Samples(), plan, shuffle=False), given, strict=False):
        batch["scale"] = whole["scale"]
        losses.append(trainer.step(batch).item())
    assert losses == pytest.approx([model()(**batch).item() for batch in given[:2]], rel=1e-5)
