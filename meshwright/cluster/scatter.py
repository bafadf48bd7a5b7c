"""Figures at scattered sizes, and how those between are read: kriging, each as near as its sizes are.

A grid over five sizes has few steps in each. Samples at the sizes that models have are nearer to what is asked. Where a
library chose badly at one size, it says little of those around it: figures that the others do not bear out are doubted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_REACH = 3.0
"""How far, in logarithms of sizes, a sample tells of others: at this distance the correlation is a half."""
_NOISE, _LEVEL, _SLOPE = 0.12, 4.0, 0.05
"""Variances, over that of what changes with the sizes: of each figure by itself, of the level of all, of slopes."""
_STRANGE, _MOST_DOUBT, _ROUNDS = 0.15, 50.0, 2
"""From which distance to what the others say a figure is doubted, in logarithms; how much at most."""

_DIGITS = ".10g"
"""Other processors and numbers of threads solve equations to other last digits, on which no plan may depend."""


class Scatter:
    """Ratios by side over points of positive sizes; distances and slopes are in their logarithms.

    weights: how much each size tells points apart. Sizes beyond the outermost are read at these. doubts: by how much
    the variance of each figure by itself is larger than usual. noise: that variance, over that of what changes with
    sizes.
    """

    __slots__ = (
        "_doubts",
        "_high",
        "_level",
        "_logs",
        "_low",
        "_memo",
        "_middle",
        "_noise",
        "_solved",
        "_values",
        "_weights",
        "points",
        "sides",
    )

    def __init__(
        self,
        points: Sequence[Sequence[float]],
        ratios: Mapping[str, Sequence[float]],
        weights: Sequence[float],
        doubts: Mapping[str, Sequence[float]] | None = None,
        noise: float = _NOISE,
    ) -> None:
        self._noise = noise
        self.points, self.sides = [tuple(point) for point in points], tuple(ratios)
        self._weights = np.array(weights, dtype=np.float64)
        self._logs: Array = np.log(np.array(points, dtype=np.float64)) * self._weights
        self._values: Array = np.log(np.array([ratios[side] for side in self.sides], dtype=np.float64)).T
        self._doubts = {side: np.array(each, dtype=np.float64) for side, each in (doubts or {}).items()}
        self._low, self._high = self._logs.min(axis=0), self._logs.max(axis=0)
        self._middle: Array = self._logs.mean(axis=0)
        self._level: Array = self._values.mean(axis=0)
        self._solved: Array | None = None
        self._memo: dict[tuple[float, ...], dict[str, float]] = {}

    def __call__(self, side: str, *point: float) -> float:
        found = self._memo.get(point)
        if found is None:
            values = [float(f"{value:{_DIGITS}}") for value in np.exp(self._at(point)).tolist()]
            found = self._memo[point] = dict(zip(self.sides, values, strict=True))
        return found[side]

    def _at(self, point: tuple[float, ...]) -> Array:
        if self._solved is None:
            self._solved = self._weighed()
        place = np.clip(np.log(np.maximum(point, 1.0)) * self._weights, self._low, self._high)
        found: Array = self._level + self._alike(place[None, :])[0] @ self._solved
        return found

    def _weighed(self) -> Array:
        among, values = self._alike(self._logs), self._values - self._level
        if not self._doubts:
            return np.asarray(np.linalg.solve(among + self._noise * np.eye(len(among)), values), dtype=np.float64)
        columns = [
            np.linalg.solve(among + self._noise * np.diag(self._doubts[side]), values[:, number])
            for number, side in enumerate(self.sides)
        ]
        return np.stack(columns, axis=1)

    def doubts(self) -> dict[str, list[float]]:
        """How much each figure is to be doubted: by its distance to what all others say of its place."""
        among, found = self._alike(self._logs), {}
        for number, side in enumerate(self.sides):
            values, each = self._values[:, number] - self._level[number], np.ones(len(among))
            for _ in range(_ROUNDS):
                inverse = np.linalg.inv(among + self._noise * np.diag(each))
                apart = np.abs(inverse @ values / np.diag(inverse))
                each = np.clip(apart / _STRANGE, 1.0, _MOST_DOUBT)
            found[side] = [float(f"{doubt:.3g}") for doubt in each]
        return found

    def _alike(self, places: Array) -> Array:
        """How much the figures at these places go with those at the points."""
        steps = places[:, None, :] - self._logs[None, :, :]
        far = np.sqrt(3.0 * (steps * steps).sum(axis=2)) / _REACH
        slopes = (places - self._middle) @ (self._logs - self._middle).T
        found: Array = (1.0 + far) * np.exp(-far) + _LEVEL + _SLOPE * slopes
        return found

    def against(self, other: Scatter) -> Scatter:
        """These ratios over another's at the same points."""
        found = {
            side: [float(np.exp(value)) / other(side, *point) for value, point in zip(column, self.points, strict=True)]
            for side, column in zip(self.sides, self._values.T, strict=True)
        }
        return Scatter(self.points, found, self._weights.tolist())
