"""What a run shows while it goes: a line on rank 0, TensorBoard where it is installed, and figures for the end."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright.explain.figures import peak_flops, step_flops
from meshwright.explain.recommend import has_tokens, tokens
from meshwright.plan.units import show_bytes, show_seconds
from meshwright.runtime.job.observe import Losses, SlowRanks, Spike
from meshwright.runtime.trainer import Trainer

_WARM = 2
"""Steps before the clock starts: the first ones allocate."""

_SILENT_S = 10.0
"""Seconds after which a line is shown whatever the step."""


CLEAR = "\033[K"
"""Ends a line that is written over: what stood behind is erased."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a whole run: tokens (or samples, where there are no tokens) per second, bytes at the peak of the fullest rank,
    seconds of a step after the first few, and losses that jumped or were not finite, with the samples of their batch.

    On a GPU the peak is what torch allocated; on a CPU it is the process's, the interpreter and torch included.
    """

    tokens_per_second: float
    peak_bytes: int
    step_s: float
    spikes: tuple[Spike, ...] = ()


class Progress:
    def __init__(self, trainer: Trainer, steps: int, quiet: bool, folder: str | None) -> None:
        self.trainer, self.steps, self.plan = trainer, steps, trainer.plan
        self.word = "tokens" if has_tokens(trainer.plan) else "samples"
        self.shown = dist.get_rank() == 0 and not quiet
        self.live = self.shown and sys.stdout.isatty()
        self.writer = _tensorboard(folder) if dist.get_rank() == 0 and folder else None
        self.flops_s = self._peak_flops()
        self.done, self.begun_s, self.warm_s, self.told_s = 0, time.perf_counter(), 0.0, time.perf_counter()
        self.losses, self.slow = Losses(), SlowRanks(trainer.watch, len(trainer.plan.stages))
        self.spikes: list[Spike] = []
        self.saved_s: float | None = None  # when a line was last printed for one
        self.unsaid = 0

    def step(self, loss: float, samples: Sequence[int] = ()) -> None:
        """After each step. samples: the numbers of those in its batch."""
        self.done += 1
        if found := self.losses.spike(self.trainer.steps, loss, samples):
            self.spikes.append(found)
            self._warn(str(found))
        self._warn(self.slow.look(self.trainer.steps))
        if self.done == _WARM:
            self.warm_s = time.perf_counter()
        number = self.trainer.steps
        if self.writer is not None:
            self.writer.add_scalar("loss", loss, number)
            self.writer.add_scalar(f"{self.word} per second", self._rate(), number)
        due = self.live or self.done == 1 or number % max(1, self.steps // 10) == 0 or number == self.steps
        due |= time.perf_counter() - self.told_s >= _SILENT_S
        if self.shown and due:
            self.told_s = time.perf_counter()
            print(self._line(loss), end="\r" if self.live and number < self.steps else "\n", flush=True)

    def saved(self, where: Path) -> None:
        """A line for a checkpoint; of those that follow quickly for one of them, which counts the others."""
        self.unsaid += 1
        if self.shown and (self.saved_s is None or time.perf_counter() - self.saved_s >= _SILENT_S):
            others = f" ({self.unsaid - 1} more since the last line)" if self.unsaid > 1 else ""
            print(f"{CLEAR if self.live else ''}saved {where}{others}", flush=True)
            self.saved_s, self.unsaid = time.perf_counter(), 0

    def figures(self) -> Figures:
        peak = torch.tensor(float(seen_bytes(self.trainer.device)), device=self.trainer.device)
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        if self.writer is not None:
            self.writer.close()
        return Figures(self._rate(), int(peak.item()), self._step_s(), tuple(self.spikes))

    def _warn(self, text: str) -> None:
        if text and dist.get_rank() == 0:
            print(f"meshwright: {text}", file=sys.stderr, flush=True)

    def _line(self, loss: float) -> str:
        seen, predicted = seen_bytes(self.trainer.device), self.plan.predicted.peak_bytes
        kind = "" if self.trainer.device.type == "cuda" else " by the process"
        parts = [f"step {self.trainer.steps:>5}/{self.steps}", f"loss {loss:.4f}", f"{self._rate():,.0f} {self.word}/s"]
        parts.append(f"{show_seconds(self._step_s())} a step, {show_seconds(self.plan.predicted.step_s)} predicted")
        parts.append(f"memory {show_bytes(seen)}{kind}, {show_bytes(predicted)} predicted")
        if self.flops_s:
            used = self.flops_s[0] / max(1e-9, self._step_s()) / self.flops_s[1]
            parts.append(f"MFU {used:.1%}")
        return "  ".join(parts)

    def _rate(self) -> float:
        """Tokens per second, of the steps after the first few once there are any."""
        return tokens(self.plan) / max(1e-9, self._step_s())

    def _step_s(self) -> float:
        steps, since_s = (self.done - _WARM, self.warm_s) if self.done > _WARM else (self.done, self.begun_s)
        return (time.perf_counter() - since_s) / max(1, steps)

    def _peak_flops(self) -> tuple[float, float] | None:
        """FLOPs of a step, and FLOP/s of all devices; on a GPU only, whose peak is known."""
        if self.trainer.device.type != "cuda" or not self.shown:
            return None
        program = self.trainer.program.at_batch(self.plan.batch)
        return float(step_flops(program)), peak_flops(self.plan, program)


def seen_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _tensorboard(folder: str) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(Path(folder) / "tensorboard"))
