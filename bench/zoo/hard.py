"""What the adversarial lists share: the batches, the loss, and how a class becomes an entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.zoo.entry import BATCH, Batch, Case, Entry, three

WIDTH, CLASSES = 16, 6


def vectors() -> Batch:
    return {"x": torch.randn(BATCH, WIDTH), "y": torch.randint(0, CLASSES, (BATCH,))}


def sequences() -> Batch:
    return {"x": torch.randn(BATCH, 6, WIDTH), "y": torch.randint(0, CLASSES, (BATCH,))}


def images() -> Batch:
    return {"x": torch.randn(BATCH, 3, 8, 8), "y": torch.randint(0, CLASSES, (BATCH,))}


def words() -> Batch:
    return {"x": torch.randint(0, 12, (BATCH, 6)), "y": torch.randint(0, CLASSES, (BATCH,))}


class Hard(nn.Module):
    """Two layers and a cross entropy; a case changes what is between, or more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, CLASSES)

    def between(self, x: Tensor) -> Tensor:
        return x.relu()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.last(self.between(self.first(x))), y)


Made = Callable[[], Any]
PARTS = ("microbatch=2",)
"""Two samples at a time: what couples samples must not be run so."""


def entry(
    name: str,
    build: Made,
    batch: Callable[[], Batch] = vectors,
    *,
    reference: str = "eager",
    loss: Any = None,
    also: tuple[str, ...] = (),
    optimizer: str = "adamw",
) -> Entry:
    """The entry of a class, or of a function that makes the model."""

    def case() -> Case:
        return Case(build(), three(batch), loss, reference)

    return Entry(f"adversarial:{name}", "adversarial", case, also=also, optimizer=optimizer)
