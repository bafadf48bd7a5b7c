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


def fullest_s(costs: Floats, spare_s: Floats) -> float:
    """The least T for which the segments fit: those of stage s cost at most T + spare_s[s] together.

    costs: by stage and segment.
    """
    stages, segments = costs.shape
    low_s = max(0.0, float((costs.min(axis=0).sum() - spare_s.sum()) / stages))
    high_s = max(low_s, float(costs.sum(axis=1).max() - spare_s.min()))
    alike = _most_alike(costs)
    ends = [(stage, at) for stage, at in ((0, 0), (stages - 1, segments - 1)) if not alike[at]]
    rest_s = float(costs[:, [i for i in range(1, segments - 1) if not alike[i]]].min(axis=0).sum())
    own_s = spare_s.copy()
    for stage, at in ends:
        own_s[stage] -= costs[stage, at]
    each_s = np.maximum(costs[:, alike].min(axis=1), 1e-300)

    def fit(limit_s: float) -> bool:
        room_s = limit_s * (1 + CLOSE) + own_s
        if room_s.min() < 0:
            return False
        whole = np.floor(room_s / each_s)
        over_s = max(0.0, rest_s - float((room_s - whole * each_s).sum()))
        return bool(whole.sum() >= alike.sum() + ceil(over_s / each_s.max() - CLOSE))

    while high_s - low_s > CLOSE * high_s:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if fit(middle_s) else (middle_s, high_s)
    return low_s


def _most_alike(costs: Floats) -> np.ndarray:
    """The segments of equal costs that cost most together; those that differ by rounding are equal."""
    _, kind = np.unique(np.round(costs / max(float(costs.max()), 1e-300), 9), axis=1, return_inverse=True)
    together = np.bincount(kind.ravel(), weights=costs.sum(axis=0))
    found: np.ndarray = kind.ravel() == together.argmax()
    return found
