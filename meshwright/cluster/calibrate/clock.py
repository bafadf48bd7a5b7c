"""Clocks for calibration: how long the device works on a call, and how long the host needs to ask for it.

A GPU works behind the host's back. To see its own time, however short, it is given something long to do first, and
the calls queue up behind that: they then run one right after the other, as they do in a step that the GPU bounds. What
is long keeps one of its units busy and no more: a load on all of them would lower the clocks that are measured with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

Run = Callable[[], Any]

_QUEUE = 200
"""Calls in flight: well under what the driver lets wait."""
_TRIES = 3
_FILL_S = 1e-4
_AHEAD_S = 4e-3
"""How long to ask ahead: what takes the host longer would fill the queue, and then the GPU waits for the host."""


def clock_for(device: torch.device) -> CudaClock | CpuClock:
    return CudaClock(device) if device.type == "cuda" else CpuClock()


class CpuClock:
    """On a CPU asking and doing are one: the shortest of a few runs, since a busy machine only makes a run longer."""

    def __init__(self, target_s: float = 1e-3, rounds: int = 6) -> None:
        self.target_s, self.rounds = target_s, rounds

    def device_s(self, run: Run, rounds: int | None = None) -> float:
        run()
        once_s = _wall_s(run, 1)
        repeats = max(1, min(100, int(self.target_s / max(once_s, 1e-7))))
        return min(_wall_s(run, repeats) / repeats for _ in range(rounds or self.rounds))

    def host_s(self, run: Run, calls: int = 1) -> float:
        return 0.0

    def synchronize(self) -> None:
        """Nothing runs behind a CPU's back."""


class CudaClock:
    """`target_s`: device time to spend on one figure."""

    def __init__(self, device: torch.device, target_s: float = 3e-4, rounds: int = 2) -> None:
        self.device, self.target_s, self.rounds = device, target_s, rounds
        self._row, self._fill_s = torch.zeros(1, 1 << 18, device=device), 0.0
        while self._fill_s < _FILL_S and self._row.shape[1] < 1 << 25:
            self._row, self._fill_s = torch.cat([self._row, self._row], dim=1), 0.0
            self._fill()
            self._fill_s = self._events_s(self._fill, 10)

    def device_s(self, run: Run, rounds: int | None = None) -> float:
        """Seconds of device time per call: the shortest of a few rounds."""
        run()
        self.synchronize()
        asked_s = _wall_s(run, 2) / 2
        self.synchronize()
        once_s = self._events_s(run, 1, asked_s)
        repeats = max(1, min(20, int(self.target_s / max(once_s, 1e-6)), int(_AHEAD_S / asked_s)))
        return min(self._events_s(run, repeats, asked_s) for _ in range(rounds or self.rounds))

    def host_s(self, run: Run, calls: int = 1) -> float:
        """Seconds the host needs per call; `run` makes `calls` of them."""
        repeats = max(1, _QUEUE // calls)
        times = []
        for _ in range(5):
            self.synchronize()
            times.append(_wall_s(run, repeats) / (repeats * calls))
        self.synchronize()
        return median(times)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def _fill(self) -> None:
        """A row is worked through by one unit, however long it is."""
        self._row.softmax(1)

    def _events_s(self, run: Run, repeats: int, asked_s: float = 0.0) -> float:
        """Once more, behind more, where the host was slower than it had been and the device may have waited for it."""
        ahead_s = 1.5 * asked_s * repeats
        for _ in range(_TRIES):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            fills = min(120, 1 + int(ahead_s / self._fill_s)) if asked_s and self._fill_s else 0
            for _ in range(fills):
                self._fill()
            begin_s = time.perf_counter()
            start.record()
            for _ in range(repeats):
                run()
            end.record()
            took_s = time.perf_counter() - begin_s
            self.synchronize()
            if took_s <= fills * self._fill_s or not fills:
                break
            ahead_s = 2 * took_s
        return float(start.elapsed_time(end)) * 1e-3 / repeats


def _wall_s(run: Run, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return time.perf_counter() - start
