"""Where a long chain may be cut: groups of segments of about equal weight, parted where little has to cross.

Of a chain of n segments all ranges of them are n^2 / 2 rows for every submesh; of k groups, k^2 / 2. Groups are chosen
so that the sum of (weight / mean weight)^2 over groups and (traffic / mean traffic) over the cuts between them is
least, none heavier than ROUGH times the lightest that the heaviest group can be: exact, by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from meshwright.planner.effort import ROUGH
from meshwright.planner.stages.clusters import cluster


def grouped(weights: Sequence[float], traffic: Sequence[float], groups: int) -> tuple[int, ...]:
    """Where so many groups begin and end. traffic[i]: what crosses between segments i - 1 and i; nothing does at the
    ends of the chain."""
    count = len(weights)
    if count <= groups:
        return tuple(range(count + 1))
    sums = [0.0, *accumulate(weights)]
    even = cluster(weights, groups)
    room = ROUGH * max(sums[b] - sums[a] for a, b in pairwise(even)) * (1 + 1e-9)
    mean = (sums[-1] / groups) or 1.0
    inner = list(traffic[1:count])
    usual = (sum(inner) / len(inner)) or 1.0
    # best[i, g]: the least of g groups that end at cut i, and where the last of them began.
    best = np.full((count + 1, groups + 1), np.inf)
    best[0, 0] = 0.0
    begun = np.zeros((count + 1, groups + 1), dtype=np.int64)
    first = 0
    for end in range(1, count + 1):
        crossing = traffic[end] / usual if end < count else 0.0
        while sums[end] - sums[first] > room:
            first += 1
        weight = sums[end] - np.array(sums[first:end])
        value = best[first:end, :-1] + ((weight / mean) ** 2)[:, None] + crossing
        begun[end, 1:] = end - 1 - value[::-1].argmin(axis=0)
        best[end, 1:] = value.min(axis=0)
    cuts = [count]
    for left in range(groups, 0, -1):
        cuts.append(int(begun[cuts[-1], left]))
    return tuple(reversed(cuts))
