"""Balanced partitions: cuts of a chain that make the heaviest run as light as possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from meshwright.errors import PlanError, counted


def balanced_cuts(weights: Sequence[float], stages: int, allowed: Sequence[int] | None = None) -> tuple[int, ...]:
    """Ends of the runs, exact by dynamic programming.

    allowed: cuts at which a run may end; all unless given.
    """
    count = len(weights)
    ends = sorted({end for end in (range(1, count) if allowed is None else allowed) if 0 < end < count} | {count})
    if not 1 <= stages <= len(ends):
        raise PlanError(
            f"{counted(stages, 'partition')} of a model that can be cut in {counted(len(ends), 'piece')}",
            f"1 to {len(ends)}",
            "ask for fewer partitions, or cut the model into more modules",
        )
    sums = [0.0, *accumulate(weights)]
    # best[end]: the heaviest of the runs so far, and where the last of them began.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for _ in range(stages):
        found: dict[int, tuple[float, int]] = {}
        for end in ends:
            before = [(first, worst) for first, (worst, _) in best[-1].items() if first < end]
            if before:
                found[end] = min((max(worst, sums[end] - sums[first]), first) for first, worst in before)
        best.append(found)
    cuts = [count]
    for step in range(stages, 1, -1):
        cuts.append(best[step][cuts[-1]][1])
    return tuple(reversed(cuts))
