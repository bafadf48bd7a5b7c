"""Clusters of consecutive segments with nearly equal weights."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.errors import PlanError


def cluster(weights: Sequence[float], most: int) -> tuple[int, ...]:
    """Cuts of at most `most` clusters of consecutive segments, the heaviest as light as possible; bisection."""
    if most < 1:
        raise PlanError(f"{most} clusters", "1 or more")
    if len(weights) <= most:
        return tuple(range(len(weights) + 1))
    low, high = max(weights), sum(weights)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_packed(weights, middle)) - 1 <= most else (middle, high)
    return _packed(weights, high)


def _packed(weights: Sequence[float], room: float) -> tuple[int, ...]:
    cuts, held = [0], 0.0
    for i, weight in enumerate(weights):
        if held + weight > room * (1 + 1e-9) and held:
            cuts.append(i)
            held = 0.0
        held += weight
    return (*cuts, len(weights))
