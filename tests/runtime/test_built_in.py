"""Data for a first run lies in the ranges that the model reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from processes import GlooPool
from torch import Tensor, nn

from meshwright.cluster import load_cluster
from meshwright.errors import RunError
from meshwright.planner.plan import make_plan
from meshwright.runtime.job import launch
from meshwright.runtime.job.data import BuiltIn
from meshwright.runtime.job.worker import Job, train
from meshwright.runtime.step.ranges import ranges_of


class Tagger(nn.Module):
    """Eleven words, five tags."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 4), nn.Linear(4, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.words(words)).transpose(1, 2)


def built_in(model: nn.Module, batch: dict[str, Tensor], text: str | None = None) -> BuiltIn:
    program = capture(model, batch, nn.functional.cross_entropy)
    return BuiltIn(make_plan(program, load_cluster("local:1")), {}, text, ranges_of(program))


def classifier() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Linear(8, 3), {"input": torch.randn(4, 8), "target": torch.randint(0, 3, (4,))}


def tagger() -> tuple[nn.Module, dict[str, Tensor]]:
    return Tagger(), {"words": torch.randint(0, 11, (4, 6)), "target": torch.randint(0, 5, (4, 6))}


@pytest.mark.parametrize(
    ("make", "counts"), [(classifier, {"target": 3}), (tagger, {"words": 11, "target": 5})], ids=("classes", "words")
)
def test_whole_numbers_lie_inside(
    make: Callable[[], tuple[nn.Module, dict[str, Tensor]]], counts: dict[str, int]
) -> None:
    model, batch = make()
    data = built_in(model, batch)
    samples = [data[index] for index in range(200)]
    for name, count in counts.items():
        found = torch.stack([sample[name] for sample in samples])
        assert found.dtype == torch.int64
        assert found.unique().tolist() == list(range(count))


def test_it_says_what_it_is() -> None:
    assert str(built_in(*classifier())) == "4,096 samples of noise, in the sizes of the batch"
    assert "samples of 6 characters of the text that comes with meshwright" in str(built_in(*tagger()))


def test_a_text_that_is_given_is_not_folded(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text of one's own")
    with pytest.raises(RunError, match="--data for a vocabulary of 5") as refused:
        built_in(*tagger(), str(tmp_path / "text"))
    assert refused.value.todo


OWN = """
import torch
from torch import nn

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(50, 8), nn.Linear(8, 1)

    def forward(self, words, weight):
        return (self.head(self.words(words)).squeeze(1) * weight).square().mean()

def make():
    torch.manual_seed(0)
    return Bag(), {"words": torch.randint(0, 50, (8, 5)), "weight": torch.rand(8)}
"""


def trained(rank: int, arguments: list[str]) -> str:
    """What a rank of `meshwright train` does and prints, without the start of a process."""
    job = Job(**json.loads(arguments[0]))
    with redirect_stdout(StringIO()) as shown:
        Path(job.result).write_text(json.dumps(train(job)))
    return shown.getvalue()


@pytest.mark.filterwarnings("ignore::meshwright.errors.RuleWarning")
def test_a_run_of_ones_own_module_learns_from_its_own_batch(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ranks: Callable[[int], GlooPool],
) -> None:
    """In every step, from the weights that its function makes: losses are plain PyTorch's. Its words are below 50,
    where characters of a text would not be."""
    from meshwright.cli import main

    def launched(module: str, arguments: list[str], world: int, *_: Any) -> bool:
        print(*ranks(world).run(trained, arguments))
        return False

    monkeypatch.setattr(launch, "launch", launched)
    (tmp_path / "own_bag.py").write_text(OWN)
    told = tmp_path / "run.json"
    reference = f"{tmp_path}/own_bag.py:make"
    words = ["train", reference, "--cluster", "local:1", "--nproc", "1", "--steps", "3", "--lr", "1e-2"]
    assert main([*words, "--json", str(told)]) == 0
    out = capfd.readouterr().out
    assert f"data: the batch that {reference} returns (8 samples), in every step" in out
    assert f"weights: as {reference} initialises them, seed 0\n" in out
    assert json.loads(told.read_text())["losses"] == pytest.approx(plain_losses(3), rel=1e-6)


def plain_losses(steps: int) -> list[float]:
    scope: dict[str, Any] = {}
    exec(OWN, scope)
    model, batch = scope["make"]()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(steps):
        loss = model(**batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses
