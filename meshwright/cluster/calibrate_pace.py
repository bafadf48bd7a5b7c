"""How fast the host is just now.

A host that others share does the same work in 8 ms one second and in 16 ms another, and what has more code and data
slows down more. So a training step of a model with layers of several kinds is timed beside whatever is timed of the
host: what counts is the ratio of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median

import torch
from torch import Tensor, nn

from meshwright.cluster.calibrate_eager import KINDS, LAYERS


class _Reshaped(nn.Module):
    """Rows as images."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.view(self.shape)


class Pace:
    """`now_s`: the host's seconds of a step of a small model. `usual_s`: the middle of twenty; what a profile is of."""

    def __init__(self, device: torch.device, steps: int = 1) -> None:
        self.device, self.steps = device, steps
        rows, images = KINDS
        blocks = [kind.block() for kind in (rows, images) for _ in range(2 * LAYERS)]
        blocks.insert(2 * LAYERS, _Reshaped(images.shape))
        model = nn.Sequential(*blocks).to(device)
        x = torch.randn(rows.shape, device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            model(x).mean().backward()
            optimizer.step()

        self._step = step
        for _ in range(10):
            step()

    def now_s(self) -> float:
        self._settle()
        start = time.perf_counter()
        for _ in range(self.steps):
            self._step()
        self._settle()
        return (time.perf_counter() - start) / self.steps

    @cached_property
    def usual_s(self) -> float:
        return median(self.now_s() for _ in range(20))

    def paced(self, measure: Callable[[], Sequence[float]], rounds: int = 3) -> list[float]:
        """What is measured, in units of a step at the pace of the moment; the middle of a few rounds."""
        rows = []
        for _ in range(rounds):
            before_s = self.now_s()
            found = measure()
            step_s = (before_s + self.now_s()) / 2
            rows.append([took_s / step_s for took_s in found])
        return [median(column) for column in zip(*rows, strict=True)]

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
