"""Positions beyond a table's rows are refused when a model is captured; fake tensors do not show them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import meshwright as mw
from meshwright.errors import ModelError


class Placed(nn.Module):
    """Positions begin at `first`; read once (from a segment) or twice (from the prologue)."""

    def __init__(self, first: int, twice: bool) -> None:
        super().__init__()
        self.first, self.twice = first, twice
        self.place, self.other = nn.Embedding(16, 8), nn.Embedding(16, 8)
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1]).unsqueeze(0) + self.first
        y = self.layers(x + self.place(positions))
        return (y + self.other(positions) if self.twice else y).square().mean()


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("first", "length", "fits"), [(0, 16, True), (0, 17, False), (2, 14, True), (2, 15, False)])
def test_more_positions_than_rows_are_refused(first: int, length: int, fits: bool, twice: bool) -> None:
    model, batch = Placed(first, twice), {"x": torch.randn(3, length, 8)}
    if fits:
        model(**batch)
        mw.capture(model, batch)
        return
    with pytest.raises(IndexError):
        model(**batch)
    with pytest.raises(ModelError, match="place has 16 rows and is read at 16"):
        mw.capture(model, batch)
