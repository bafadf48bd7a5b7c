"""One trainer for batches of other sizes: a smaller last batch, given sequence lengths. Compared with plain eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from processes import GlooPool
from torch import Tensor, nn

import meshwright as mw
from meshwright.errors import PlanError, RunError
from meshwright.plan import Plan
from meshwright.runtime.variants import check_storage


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(3))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def words(rows: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = (torch.randint(0, 20, (rows, length), generator=generator) for _ in range(2))
    return {"tokens": tokens, "targets": torch.where(targets > 17, -100, targets)}


SIZES = [(8, 6), (8, 10), (4, 6), (6, 10), (8, 6)]


def train(rank: int, plans: list[bytes]) -> tuple[list[float], dict[str, Tensor], str]:
    model = Words().double()
    trainer = mw.parallelize(model, [Plan.from_json(plan) for plan in plans])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for number, (rows, length) in enumerate(SIZES):
        losses.append(trainer.step(words(rows, length, number), global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    losses.append(trainer.evaluate(words(2, 6), global_batch=True).item())
    try:
        trainer.step(words(5, 6), global_batch=True)
        refused = ""
    except RunError as error:
        refused = str(error)
    with trainer.gathered() as whole:
        return losses, {name: one.detach().clone() for name, one in whole.named_parameters()}, refused


def plan_of(length: int, *pins: str, microbatches: int = 1) -> Plan:
    plan = mw.plan(Words().double(), words(8, length), "local:2", pins=pins)
    return replace(plan, microbatches=microbatches)


@pytest.mark.parametrize("microbatches", [2, pytest.param(1, marks=pytest.mark.full)])
def test_one_trainer_runs_lengths_and_smaller_batches(microbatches: int, ranks: Callable[[int], GlooPool]) -> None:
    model, losses = Words().double(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, (rows, length) in enumerate(SIZES):
        loss = model(**words(rows, length, number))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    losses.append(model(**words(2, 6)).item())
    plans = [plan_of(length, "dp=2", "zero=3", microbatches=microbatches).to_json() for length in (6, 10)]
    for found, parameters, refused in ranks(2).run(train, plans):
        assert found == pytest.approx(losses, rel=1e-9)
        for name, one in model.named_parameters():
            torch.testing.assert_close(parameters[name], one.detach(), rtol=1e-7, atol=1e-9)
        assert "a multiple of 2 samples" in refused


def test_plans_that_store_otherwise_are_refused() -> None:
    sharded, whole = plan_of(6, "dp=2", "zero=3"), plan_of(10, "dp=2", "zero=0")
    with pytest.raises(PlanError, match="is stored"):
        check_storage(sharded, whole)


def loaded(rank: int, plan_json: bytes) -> tuple[list[list[int]], list[float]]:
    plan, whole = Plan.from_json(plan_json), words(20, 6)
    dataset: Any = [{name: tensor[row] for name, tensor in whole.items()} for row in range(20)]
    trainer = mw.parallelize(Words().double(), plan)
    data = mw.loader(dataset, plan, shuffle=False, drop_last=False)
    assert len(data) == 3
    batches = list(data)
    return [list(batch["tokens"].shape) for batch in batches], [trainer.evaluate(batch).item() for batch in batches]


def test_a_loader_gives_the_smaller_last_batch(ranks: Callable[[int], GlooPool]) -> None:
    model, whole = Words().double(), words(20, 6)
    true = [model(**{k: t[first : first + 8] for k, t in whole.items()}).item() for first in (0, 8, 16)]
    for shapes, losses in ranks(2).run(loaded, plan_of(6, "dp=2").to_json()):
        assert shapes == [[4, 6], [4, 6], [2, 6]]
        assert losses == pytest.approx(true, rel=1e-9)
