"""Forms in which models, losses and data come: tuples, losses with parameters, streams. Compared with plain eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from processes import GlooPool
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import meshwright as mw
from meshwright.plan import Plan


class Tuples(nn.Module):
    """Returns (loss, logits), or (logits, loss)."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layers = first, nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.layers(x)
        loss = nn.functional.cross_entropy(logits, y)
        return (loss, logits) if self.first else (logits, loss)


@pytest.mark.parametrize("first", [True, False])
def test_a_tuple_with_a_loss(first: bool) -> None:
    model, batch = Tuples(first).double(), {"x": torch.randn(4, 6).double(), "y": torch.randint(0, 4, (4,))}
    true = model(**batch)
    loss, logits = true if first else true[::-1]
    trainer = mw.parallelize(model, mw.plan(model, batch))
    assert trainer.step(batch).item() == pytest.approx(loss.item(), rel=1e-12)
    assert torch.equal(trainer(batch)[1 if first else 0], logits)


class Centres(nn.Module):
    """A loss with parameters: the distance to a learned centre of the class."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.linspace(-1, 1, 20).reshape(4, 5).double())

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        return (output - self.centres[y]).square().sum(1).mean()


def learned() -> tuple[nn.Module, nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 5)).double()
    return model, Centres(), (torch.randn(4, 6).double(), torch.randint(0, 4, (4,)))


def train_learned(rank: int, plan_json: bytes) -> tuple[list[float], list[Tensor]]:
    model, loss, batch = learned()
    trainer = mw.parallelize(model, Plan.from_json(plan_json), loss)
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=1e-2)
    losses = []
    for _ in range(3):
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    with trainer.gathered() as whole:
        assert whole is model
        found = [p.detach().clone() for p in (*model.parameters(), *loss.parameters())]
    return losses, found


def test_a_loss_with_parameters_is_trained(ranks: Callable[[int], GlooPool]) -> None:
    model, loss, batch = learned()
    plan = mw.plan(model, batch, "local:2", loss=loss, pins=("dp=2", "zero=3")).to_json()
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=1e-2)
    losses = []
    for _ in range(3):
        found = loss(model(batch[0]), batch[1])
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found.item())
    for own, parameters in ranks(2).run(train_learned, plan):
        assert own == pytest.approx(losses, rel=1e-10)
        for one, other in zip(parameters, [*model.parameters(), *loss.parameters()], strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-8, atol=1e-10)


class Stream(IterableDataset[dict[str, Tensor]]):
    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter({"x": torch.full((6,), float(number)), "y": torch.tensor(number % 4)} for number in range(11))


def streamed(rank: int, plan_json: bytes) -> list[list[list[float]]]:
    plan = Plan.from_json(plan_json)
    data: Any = mw.loader(Stream(), plan)
    first, second = ([batch["x"][:, 0].tolist() for batch in data] for _ in range(2))
    again = mw.loader(Stream(), plan)
    next(iter(data))
    again.load_state_dict(data.state_dict())
    return [first, second, [batch["x"][:, 0].tolist() for batch in again]]


def test_a_stream_is_shared_by_ranks(ranks: Callable[[int], GlooPool]) -> None:
    model, batch = Tuples(True), {"x": torch.randn(4, 6), "y": torch.randint(0, 4, (4,))}
    plan = mw.plan(model, batch, "local:2", pins=("dp=2",)).to_json()
    for rank, (first, second, rest) in enumerate(ranks(2).run(streamed, plan)):
        rows = [[4.0 * k + 2 * rank, 4.0 * k + 2 * rank + 1] for k in range(2)]
        assert first == second == rows
        assert rest == rows[1:]
