"""Read once, by the process that a pool's ranks are copies of: what each of them would import and set up first."""

from __future__ import annotations

import gc
from importlib import import_module

import captures
import torch
import traces
from torch import Tensor, nn


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


captures.share()
traces.share()
for name in ("pytest", "meshwright.runtime.trainer", "meshwright.runtime.state.folder", "meshwright.planner.plan"):
    import_module(name)
torch.set_num_threads(1)  # copies have no threads but the one that was copied
if torch.version.cuda is None:  # else backward has threads, and a copy of a process that ran it cannot run it
    import_module("meshwright.generate.pair").make_pair(
        captures.captured(Line(), {"x": torch.ones(2, 2)}).graphs[0].at(2)
    )
gc.freeze()  # collections, and whoever looks through all objects, pass over what copies have from here
