"""What a device profile holds: seconds over bytes, fractions over sizes, figures at scattered sizes, the host's."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.cluster.scatter import Scatter


Axes = tuple[tuple[str, tuple[int, ...]], ...]


class Curve:
    """Seconds over bytes: between points a power law, below the first its seconds, above the last its rate."""

    __slots__ = ("_logs", "_seconds", "points")

    def __init__(self, points: list[tuple[float, float]]) -> None:
        self.points = sorted((float(x), float(y)) for x, y in points)
        self._logs = [log(x) for x, _ in self.points]
        self._seconds = [log(y) for _, y in self.points]

    def __call__(self, work: float) -> float:
        if work <= 0:
            return 0.0
        if work <= self.points[0][0]:
            return self.points[0][1]
        last, last_s = self.points[-1]
        if work >= last:
            return last_s * work / last
        x, xs, ys = log(work), self._logs, self._seconds
        i = bisect_right(xs, x)
        share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        return exp(ys[i - 1] + share * (ys[i] - ys[i - 1]))


class Grid:
    """Fractions over a few sizes of each axis; multilinear in logarithms, the nearest edge outside."""

    __slots__ = ("_logs", "_strides", "_values", "axes", "fractions")

    def __init__(self, axes: Axes, fractions: list[float]) -> None:
        self.axes, self.fractions = axes, fractions
        self._logs = [[log(size) for size in sizes] for _, sizes in axes]
        self._values = [log(value) for value in fractions]
        strides, step = [], 1
        for _, sizes in reversed(axes):
            strides.append(step)
            step *= len(sizes)
        self._strides = strides[::-1]

    def points(self) -> list[tuple[int, ...]]:
        return list(product(*(sizes for _, sizes in self.axes)))

    def at_least(self, *point: float) -> tuple[float, ...]:
        """The point, or the lowest that was measured: what is smaller still takes as long."""
        return tuple(max(size, sizes[0]) for size, (_, sizes) in zip(point, self.axes, strict=True))

    def __call__(self, *point: float) -> float:
        corners = [(0, 1.0)]
        for logs, stride, size in zip(self._logs, self._strides, point, strict=True):
            x = log(size) if size > 0 else 0.0
            if x <= logs[0] or len(logs) == 1:
                continue
            if x >= logs[-1]:
                shift = (len(logs) - 1) * stride
                corners = [(index + shift, weight) for index, weight in corners]
                continue
            i = bisect_right(logs, x)
            share = (x - logs[i - 1]) / (logs[i] - logs[i - 1])
            low, high = (i - 1) * stride, i * stride
            corners = [
                corner
                for index, weight in corners
                for corner in ((index + low, weight * (1 - share)), (index + high, weight * share))
            ]
        return exp(sum(self._values[index] * weight for index, weight in corners))


def filled(axes: Axes, cells: Mapping[tuple[int, ...], float]) -> list[float]:
    """All fractions in order; points that were not measured take the nearest one's that was."""
    places = list(product(*(range(len(sizes)) for _, sizes in axes)))
    known = {
        place: cells[tuple(sizes[i] for i, (_, sizes) in zip(place, axes, strict=True))]
        for place in places
        if tuple(sizes[i] for i, (_, sizes) in zip(place, axes, strict=True)) in cells
    }
    found = []
    for place in places:
        near = min(known, key=lambda other: sum(abs(a - b) for a, b in zip(place, other, strict=True)))
        found.append(float(f"{known[near]:.4g}"))
    return found


@dataclass(frozen=True, slots=True)
class OptimizerCost:
    """Host seconds of a step: `fixed_s`, `tensor_s` for each tensor, `byte_s` for each byte (one launch has only so
    many). Device: a curve over parameter bytes, and `tensor_device_s` for each tensor. `gradient_s`: of handing a
    trainer's parameter its gradient."""

    fixed_s: float
    tensor_s: float
    tensor_device_s: float
    curves: Mapping[str, Curve]
    gradient_s: float = 0.0
    byte_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tables:
    """What was measured, as measured: on a device of these nominal rates."""

    name: str
    kind: str
    peaks: Mapping[str, float]
    memory_bandwidth: float
    units: int
    launch_s: float
    reached: Mapping[str, float]
    kernels: Mapping[str, Mapping[str, Curve]]
    grids: Mapping[str, Mapping[str, Grid]]
    scatters: Mapping[str, Mapping[str, Scatter]]
    misaligned: Mapping[str, Mapping[str, list[list[float]]]]
    grouped: Mapping[str, list[list[float]]]
    channels_last: Mapping[str, Mapping[str, float]]
    steady: Mapping[str, list[list[float]]]
    host: Mapping[str, Mapping[str, tuple[float, ...]]]
    pairs: Mapping[str, Mapping[str, tuple[float, ...]]]
    optimizers: Mapping[str, OptimizerCost]
