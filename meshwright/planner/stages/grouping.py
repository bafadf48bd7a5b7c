"""Groups of segments: the places at which a long chain may be cut.

A chain of n segments has n^2 / 2 ranges on every submesh, k groups of them k^2 / 2. The groups minimise

    sum over groups (weight / mean weight)^2  +  sum over cuts between them (traffic / mean traffic)

subject to no group being heavier than ROUGH times the heaviest of the most even grouping. Dynamic programming solves
this exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from meshwright.planner.effort import ROUGH


def grouped(weights: Sequence[float], traffic: Sequence[float], groups: int) -> tuple[int, ...]:
    """Cuts between so many groups, with both ends of the chain.

    weights: of each segment.
    traffic: [i]: bytes that cross between segments i - 1 and i; zero at the ends of the chain.
    """
    count = len(weights)
    if count <= groups:
        return tuple(range(count + 1))
    sums = [0.0, *accumulate(weights)]
    room = ROUGH * _heaviest(sums, groups) * (1 + 1e-9)
    mean = (sums[-1] / groups) or 1.0
    inner = list(traffic[1:count])
    mean_traffic = (sum(inner) / len(inner)) or 1.0
    # best[i, g]: the minimum of g groups that end at cut i. begun[i, g]: where the last of them begins.
    best = np.full((count + 1, groups + 1), np.inf)
    best[0, 0] = 0.0
    begun = np.zeros((count + 1, groups + 1), dtype=np.int64)
    first = 0
    for end in range(1, count + 1):
        crossing = traffic[end] / mean_traffic if end < count else 0.0
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


def _heaviest(sums: Sequence[float], groups: int) -> float:
    """Weight of the heaviest of so many groups that are as even as can be, by bisection. sums: before each segment."""
    low, high = max(b - a for a, b in pairwise(sums)), sums[-1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_packed(sums, middle)) - 1 <= groups else (middle, high)
    return max(sums[b] - sums[a] for a, b in pairwise(_packed(sums, high)))


def _packed(sums: Sequence[float], room: float) -> list[int]:
    """Cuts of groups that are each as long as the room allows."""
    cuts = [0]
    for i in range(1, len(sums) - 1):
        if sums[i + 1] - sums[cuts[-1]] > room * (1 + 1e-9):
            cuts.append(i)
    return [*cuts, len(sums) - 1]
