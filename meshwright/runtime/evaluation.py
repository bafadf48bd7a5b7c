"""Forward alone, as a model in eval mode does it: dropout off, BatchNorm by its running statistics, nothing updated."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from meshwright.capture.program import SegmentGraph
from meshwright.capture.read import BATCH_NORM
from meshwright.rules.rule import LOWERINGS

BATCH_NORMS = (BATCH_NORM, f"{LOWERINGS}:batch_norm")


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
    axis: str = "",
    size: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNorm that has learned its statistics; over a sharded batch it needs nothing of other ranks."""
    return F.batch_norm(x, mean, var, weight, bias, False, momentum, eps), mean, var


def in_eval_mode(graph: SegmentGraph) -> SegmentGraph:
    """A sharded segment as it is evaluated."""
    target = f"{__name__}:batch_norm"
    ops = (replace(op, target=target) if op.target in BATCH_NORMS else op for op in graph.ops)
    return replace(graph, ops=tuple(ops), updates=())
