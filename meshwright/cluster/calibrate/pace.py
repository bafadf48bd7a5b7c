"""How fast the host is just now.

A host that others share does the same work in 5 ms one second and in 9 ms another. So a training step of a model with
layers of several kinds is timed with whatever is timed of the host: what counts is the ratio of the two. Where the
pace before and after differ, it changed in between, and the ratio is of no use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor, nn

from meshwright.cluster.calibrate.eager import KINDS, LAYERS

STEADY = 0.1
"""By how much of themselves two paces may differ and still be one."""
_TRIES = 3


class _Reshaped(nn.Module):
    """Rows as images."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.view(self.shape)


class Reference:
    """A training step of a model with so many layers of each of two kinds, timed alone: what came before was other."""

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32, layers: int = LAYERS) -> None:
        self.device, self.layers = device, layers
        rows, images = KINDS
        blocks = [kind.block() for kind in (rows, images) for _ in range(layers)]
        blocks.insert(layers, _Reshaped(images.shape))
        model = nn.Sequential(*blocks).to(device=device, dtype=dtype)
        x = torch.randn(rows.shape, device=device).to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

        def step() -> list[float]:
            marks = [time.perf_counter()]
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).mean()
            marks.append(time.perf_counter())
            loss.backward()
            marks.append(time.perf_counter())
            optimizer.step()
            marks.append(time.perf_counter())
            return marks

        self._step = step
        for _ in range(10):
            step()

    def phases(self) -> list[float]:
        """The host's seconds of forward, backward and optimizer."""
        self._synchronize()
        found = [after - before for before, after in pairwise(self._step())]
        self._synchronize()
        return found

    def now_s(self) -> float:
        self._synchronize()
        start = time.perf_counter()
        self._step()
        self._synchronize()
        return time.perf_counter() - start

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Pace(Reference):
    """`now_s`: seconds of a step just now. `usual_s`: what a profile is of: the quicker ones of forty."""

    @cached_property
    def usual_s(self) -> float:
        return sorted(self.now_s() for _ in range(40))[10]

    def rounds(self, measure: Callable[[], Sequence[float]], count: int) -> list[list[float]]:
        """What is measured, in units of a step at the pace of the moment; again where that changed meanwhile."""
        kept: list[list[float]] = []
        changed: list[list[float]] = []
        before_s = self.now_s()
        for _ in range(_TRIES * count):
            found = measure()
            after_s = self.now_s()
            unit_s = (before_s + after_s) / 2
            steady = abs(after_s - before_s) <= STEADY * unit_s
            (kept if steady else changed).append([took_s / unit_s for took_s in found])
            before_s = after_s
            if len(kept) == count:
                break
        return kept if 2 * len(kept) >= count else kept + changed

    def paced(self, measure: Callable[[], Sequence[float]], rounds: int = 3) -> list[float]:
        """The middle of a few rounds."""
        return [median(column) for column in zip(*self.rounds(measure, rounds), strict=True)]
