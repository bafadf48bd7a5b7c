"""What the fullest stage takes at least, where every segment belongs whole to one of several equal stages.

The average of the stages is below that: 32 equal layers and a head of 2.4 are 8.6 layers for each of four stages, but
one of them has nine. Here the segments that are alike are dealt whole. The first segment belongs to the first stage and
the last to the last, and all others are taken to be divisible.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from meshwright.planner.effort import CLOSE
from meshwright.planner.stages.options import Floats


class Dealt:
    """Segments that belong to equal stages. costs: by stage and segment."""

    def __init__(self, costs: Floats) -> None:
        self.stages, segments = costs.shape
        alike = _most_alike(costs)
        others = [i for i in range(1, segments - 1) if not alike[i]]
        ends = [(stage, at) for stage, at in ((0, 0), (self.stages - 1, segments - 1)) if not alike[at]]
        self.ends = [(stage, costs[stage, at]) for stage, at in ends]
        self.alike, self.rest_s = alike.sum(), float(costs[:, others].min(axis=0).sum())
        self.each_s = np.maximum(costs[:, alike].min(axis=1), 1e-300)
        self.least_s, self.most_s = costs.min(axis=0).sum(), costs.sum(axis=1).max()

    def fullest_s(self, spare_s: Floats, above_s: float = 0.0) -> float:
        """The least T for which the segments fit: those of stage s cost at most T + spare_s[s] together. `above_s`
        where that is no less."""
        own_s = spare_s.copy()
        for stage, cost_s in self.ends:
            own_s[stage] -= cost_s
        low_s = max(0.0, float((self.least_s - spare_s.sum()) / self.stages))
        high_s = max(low_s, float(self.most_s - spare_s.min()))
        if above_s and (above_s >= high_s or self._fit(above_s, own_s)):
            return above_s
        while high_s - low_s > CLOSE * high_s:
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (low_s, middle_s) if self._fit(middle_s, own_s) else (middle_s, high_s)
        return max(low_s, above_s)

    def _fit(self, limit_s: float, own_s: Floats) -> bool:
        room_s = limit_s * (1 + CLOSE) + own_s
        if room_s.min() < 0:
            return False
        whole = np.floor(room_s / self.each_s)
        over_s = max(0.0, self.rest_s - float((room_s - whole * self.each_s).sum()))
        return bool(whole.sum() >= self.alike + ceil(over_s / self.each_s.max() - CLOSE))


def _most_alike(costs: Floats) -> np.ndarray:
    """The segments of equal costs that cost most together; those that differ by rounding are equal."""
    _, kind = np.unique(np.round(costs / max(float(costs.max()), 1e-300), 9), axis=1, return_inverse=True)
    together = np.bincount(kind.ravel(), weights=costs.sum(axis=0))
    found: np.ndarray = kind.ravel() == together.argmax()
    return found
