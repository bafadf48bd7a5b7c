"""What a run is watched for: losses that jump, with the batch that made them, and the rank that the others wait for."""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch.distributed as dist

from meshwright.errors import counted
from meshwright.plan.units import show_seconds
from meshwright.runtime.watch import Watch

RECENT, FEWEST = 64, 16
"""Losses that the next is compared with; with fewer nothing is said."""
FAR = 8.0
"""A spike: so many times the usual distance from the median of the recent losses."""
LEAST = 0.02
"""The usual distance is not taken to be less than this share of the median."""
EVERY = 50
"""Steps between looks at the ranks."""
SHARE = 0.1
"""A rank is slow where the others wait for it for so much of a step."""
MOST_NAMED = 16
"""Samples that a message names."""


def named_samples(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:MOST_NAMED])) + (", ..." if len(numbers) > MOST_NAMED else "")


@dataclass(frozen=True, slots=True)
class Spike:
    """A loss that is not finite, or far above those before it, and the samples of its batch."""

    step: int
    loss: float
    usual: float | None
    samples: tuple[int, ...]

    def __str__(self) -> str:
        usual = f", {self.usual:.4g} is usual" if self.usual is not None else ""
        batch = f"its batch: samples {named_samples(self.samples)} of the data"
        return f"the loss is {self.loss:.4g} at step {self.step}{usual}; {batch}"


class Losses:
    """The losses of late."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=RECENT)

    def spike(self, step: int, loss: float, samples: Sequence[int]) -> Spike | None:
        """What is to be said of this one. Spikes are not compared with: one does not hide the next."""
        usual = median(self.recent) if self.recent else None
        if not math.isfinite(loss):
            return Spike(step, loss, usual, tuple(samples))
        if usual is not None and len(self.recent) >= FEWEST:
            apart = median(abs(one - usual) for one in self.recent)
            if loss - usual > FAR * max(apart, LEAST * abs(usual)):
                return Spike(step, loss, usual, tuple(samples))
        self.recent.append(loss)
        return None


class SlowRanks:
    """Which rank the others wait for in their collectives: it waits least itself.

    Ranks of one stage do the same work, so what one waits less than all others is time that it was late. Over gloo
    collectives last until everybody has come; over NCCL they are only asked for, and nothing is found.
    """

    def __init__(self, watch: Watch, stages: int) -> None:
        self.watch = watch
        self.looks = stages == 1 and watch.world > 1
        self.named: int | None = None
        self._waited_s, self._since_s, self._step = watch.waited_s, time.perf_counter(), -1

    def look(self, step: int) -> str:
        """After a step that is a multiple of EVERY, on all ranks: what is to be said, on rank 0."""
        if not self.looks or step % EVERY:
            return ""
        first, steps = self._step < 0, max(1, step - self._step)  # the first steps allocate
        own = [(self.watch.waited_s - self._waited_s) / steps, (time.perf_counter() - self._since_s) / steps]
        told: list[tuple[str, float, float]] = [("", 0.0, 0.0)] * self.watch.world
        with self.watch.during("compare the ranks"):
            dist.all_gather_object(told, (socket.gethostname(), *own))
        self._waited_s, self._since_s, self._step = self.watch.waited_s, time.perf_counter(), step
        return "" if first else self._judge(told, steps)

    def _judge(self, told: Sequence[tuple[str, float, float]], steps: int) -> str:
        """told: each rank's host, and seconds of a step that it waited and that it took."""
        waits = sorted((waited_s, rank) for rank, (_, waited_s, _) in enumerate(told))
        (least_s, rank), (next_s, _) = waits[:2]
        late_s, step_s = next_s - least_s, told[rank][2]
        if late_s < SHARE * step_s:
            self.named = None
            return ""
        if rank == self.named:  # it was said
            return ""
        self.named = rank
        others = "the others wait" if len(told) > 2 else "the other waits"
        return (
            f"rank {rank} on {told[rank][0]} is slow: {others} for it {show_seconds(late_s)} of {show_seconds(step_s)} "
            f"in each of the last {counted(steps, 'step')}"
        )
