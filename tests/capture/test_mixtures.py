"""Mixtures of experts that guard against picks of no expert are one op where no such pick can be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from equality import assert_runs_like
from torch import Tensor, nn

from meshwright.capture import Program, capture
from meshwright.capture.experts import MIX

EXPERTS, PICKS, WIDTH = 4, 2, 8


class Guarded(nn.Module):
    """scores: how many the picks are taken from; more than there are experts, and some picks are no expert's."""

    def __init__(self, scores: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, scores)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(PICKS)
        ids, order = chosen.flatten().sort()
        rows = x[order // PICKS]
        ends = torch.histc(ids.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
        absent = (ids >= EXPERTS).unsqueeze(-1)
        ids.clamp_(max=EXPERTS - 1)
        rows.masked_fill_(absent, 0.0)
        made = F.grouped_mm(rows, self.weight, offs=ends).masked_fill(
            absent, 0.0
        )  # rows of no expert are never written
        made = made + self.bias[ids]
        weighed = made * weights.flatten()[order].unsqueeze(-1)
        weighed.masked_fill_(absent, 0.0)
        return weighed[order.argsort()].view(-1, PICKS, WIDTH).sum(1).square().mean()


def captured(scores: int) -> tuple[Program, nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model, batch = Guarded(scores), {"x": torch.randn(6, WIDTH)}
    return capture(model, batch), model, batch


@pytest.mark.parametrize(("scores", "fused"), [(EXPERTS, 1), (EXPERTS + 2, 0)])
def test_guards_are_looked_through_only_where_they_stand_for_nothing(scores: int, fused: int) -> None:
    program, model, batch = captured(scores)
    assert sum(op.target == MIX for graph in program.graphs for op in graph.ops) == fused
    assert_runs_like(program, model, batch, tolerance=2e-6)
