"""Figures at scattered sizes, and how those between are read: a regression over the nearest of them.

A grid over five sizes has few steps in each. Samples at the sizes that models have are nearer to what is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

NEAREST = 10
_NARROW = 1.5
_RIDGE = 0.3
"""How far the slope between few points is trusted."""


class Scatter:
    """Ratios by side over points of positive sizes; distances and slopes are in their logarithms.

    weights: how much each size tells points apart. Sizes beyond the outermost are read at these.
    """

    __slots__ = ("_high", "_logs", "_low", "_memo", "_values", "_weights", "points", "sides")

    def __init__(
        self, points: Sequence[Sequence[float]], ratios: Mapping[str, Sequence[float]], weights: Sequence[float]
    ) -> None:
        self.points, self.sides = [tuple(point) for point in points], tuple(ratios)
        self._weights = np.array(weights, dtype=np.float64)
        self._logs: Array = np.log(np.array(points, dtype=np.float64)) * self._weights
        self._values: Array = np.log(np.array([ratios[side] for side in self.sides], dtype=np.float64)).T
        self._low, self._high = self._logs.min(axis=0), self._logs.max(axis=0)
        self._memo: dict[tuple[float, ...], dict[str, float]] = {}

    def __call__(self, side: str, *point: float) -> float:
        found = self._memo.get(point)
        if found is None:
            found = self._memo[point] = dict(zip(self.sides, np.exp(self._at(point)).tolist(), strict=True))
        return found[side]

    def _at(self, point: tuple[float, ...]) -> Array:
        place = np.log(np.maximum(point, 1.0)) * self._weights
        steps = self._logs - np.clip(place, self._low, self._high)
        distances = np.sqrt((steps * steps).sum(axis=1))
        near = np.argsort(distances, kind="stable")[:NEAREST]
        trust = np.exp(-((_NARROW * distances[near] / max(float(distances[near[-1]]), 1e-9)) ** 2))
        # The place itself is the origin: the regression's constant is the value there.
        columns = np.concatenate([np.ones((len(near), 1)), steps[near]], axis=1)
        weighted = columns * trust[:, None]
        ridge = np.diag([1e-9] + [_RIDGE] * steps.shape[1])
        solved: Array = np.linalg.solve(columns.T @ weighted + ridge, weighted.T @ self._values[near])
        found: Array = solved[0]
        return found

    def against(self, other: Scatter) -> Scatter:
        """These ratios over another's at the same points."""
        found = {
            side: [float(np.exp(value)) / other(side, *point) for value, point in zip(column, self.points, strict=True)]
            for side, column in zip(self.sides, self._values.T, strict=True)
        }
        return Scatter(self.points, found, self._weights.tolist())
