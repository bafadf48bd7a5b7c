"""Numbers to call a segment with."""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.capture.program import SegmentGraph


def arguments(graph: SegmentGraph) -> dict[str, Tensor]:
    """The same wherever it is called."""
    torch.manual_seed(1)
    found = {}
    for value in graph.arguments():
        if value.type.is_float:
            found[value.name] = torch.rand(value.type.sizes, dtype=getattr(torch, value.type.dtype)) + 0.1
        else:
            found[value.name] = torch.randint(0, 10, value.type.sizes)
    return found
