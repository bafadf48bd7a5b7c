"""What forward does in Python rather than in torch: counters, chance, branches on tensors, wrappers."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from bench.zoo.entry import BATCH, Batch
from bench.zoo.hard import CLASSES, PARTS, WIDTH, Hard, entry, vectors


class Counter(Hard):
    """A Python number that grows with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def between(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.relu() * (0.5 + 0.25 * self.calls)


class Chance(Hard):
    """Python's own random numbers."""

    def between(self, x: Tensor) -> Tensor:
        return x.relu() * random.uniform(0.5, 1.5)


class NumpyChance(Hard):
    """numpy's."""

    def between(self, x: Tensor) -> Tensor:
        return x.relu() * torch.from_numpy(np.random.rand(x.shape[-1]).astype(np.float32))


class IfTensor(Hard):
    """A mask that applies where a value of the batch says so."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x)
        if (x[:, 0] > 0).any():
            h = h * (x[:, :1] > 0)
        return nn.functional.cross_entropy(self.last(h), y)


class IfItem(Hard):
    """A branch on a number taken out of a tensor."""

    def between(self, x: Tensor) -> Tensor:
        return x.relu() if x.abs().max().item() > 1.0 else 2.0 * x


class WhileTensor(Hard):
    """A loop whose length depends on the data."""

    def between(self, x: Tensor) -> Tensor:
        while x.norm() > 4.0:
            x = x * 0.5
        return x


class DataShape(Hard):
    """As many rows as the batch has positive samples."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kept = x[:, 0] > -0.5
        return nn.functional.cross_entropy(self.last(self.first(x[kept]).relu()), y[kept])


class Nonzero(Hard):
    """Indices of what is not zero."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        rows = (y > 0).nonzero().squeeze(1)
        return nn.functional.cross_entropy(self.last(self.first(x).relu())[rows], y[rows])


class Shaped(Hard):
    """A factor from the size of the batch."""

    def between(self, x: Tensor) -> Tensor:
        return x.relu() * (x.shape[0] / 4) + x.sum(0, keepdim=True) / len(x)


class Nested(nn.Module):
    """Outputs in nested containers, a loss beside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(WIDTH, CLASSES), "b": nn.Linear(WIDTH, 1)})

    def forward(self, x: Tensor) -> dict[str, object]:
        return {"logits": [self.heads["a"](x), None], "more": {"value": (self.heads["b"](x), 3, "text")}}


def nested_loss(output: dict, y: Tensor) -> Tensor:  # type: ignore[type-arg]
    return nn.functional.cross_entropy(output["logits"][0], y) + output["more"]["value"][0].pow(2).mean()


class Training(Hard):
    """A branch on `self.training`."""

    def between(self, x: Tensor) -> Tensor:
        return x.relu() + (0.1 if self.training else 0.0) * x.std(0)


class TryExcept(Hard):
    """An exception that forward handles itself."""

    def between(self, x: Tensor) -> Tensor:
        try:
            return x.view(3, -1)
        except RuntimeError:
            return x.relu()


class Cached(Hard):
    """A table that forward makes at its first call and keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def between(self, x: Tensor) -> Tensor:
        if self.table is None or self.table.shape[0] != x.shape[-1]:
            self.table = torch.linspace(0, 1, x.shape[-1]).cos()
        return x * self.table


class Remembering(Hard):
    """The last batch's activations, kept for the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Tensor | None = None

    def between(self, x: Tensor) -> Tensor:
        found = x if self.before is None else x + 0.1 * self.before
        self.before = x.detach()
        return found.relu()


class Scalars(Hard):
    """Entries of the batch that have no sample dim in common."""

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.last(self.first(x).relu()), y, weight=weight)


def _frozen() -> nn.Module:
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4)), nn.Linear(WIDTH, CLASSES)
    )
    model[:4].requires_grad_(False)
    return model


def _inputs() -> Batch:
    return {"input": torch.randn(BATCH, WIDTH), "y": torch.randint(0, CLASSES, (BATCH,))}


def _compiled() -> nn.Module:
    return torch.compile(Hard(), backend="eager")  # type: ignore[return-value]


ENTRIES = [
    entry("python-counter", Counter),
    entry("python-random", Chance),
    entry("numpy-random", NumpyChance),
    entry("if-tensor", IfTensor),
    entry("if-item", IfItem),
    entry("while-tensor", WhileTensor),
    entry("data-dependent-shape", DataShape),
    entry("nonzero", Nonzero),
    entry("batch-size-factor", Shaped, also=PARTS),
    entry("nested-outputs", Nested, loss=nested_loss),
    entry("training-branch", Training),
    entry("try-except", TryExcept),
    entry("lazy-table", Cached),
    entry("remembers-batch", Remembering),
    entry("class-weights", Scalars, lambda: vectors() | {"weight": torch.rand(CLASSES) + 0.5}, also=PARTS),
    entry("frozen-backbone", _frozen, _inputs, loss=nn.CrossEntropyLoss()),
    entry("compiled", _compiled),
    entry("data-parallel", lambda: nn.DataParallel(Hard())),
]  # fmt: skip
