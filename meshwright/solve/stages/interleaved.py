"""Interleaved pipelines: equal submeshes, each with several runs of segments, dealt round."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from meshwright.solve.stages.problem import PlacedRun, StagePoint, StageProblem

PRICES = (0.0, 1e-12, 1e-11, 1e-10, 1e-9)
"""Seconds per resident byte, from the fastest points to the smallest."""


def _fits(problem: StageProblem, mesh: int, stages: int, runs: int) -> bool:
    wanted = [stages * count for count in problem.meshes[mesh].devices]
    enough = all(have >= want for have, want in zip(problem.devices, wanted, strict=True))
    return enough and stages * runs <= len(problem.all_cuts) - 1


def least_interleaved_s(problem: StageProblem, microbatches: int, mesh: int, stages: int, runs: int) -> float:
    """No stage can do less than its part of all the work."""
    if not _fits(problem, mesh, stages, runs):
        return inf
    points = _chosen(problem, microbatches, mesh, 0.0)
    total_s = _partition(points, len(problem.all_cuts) - 1, stages * runs, total=True)[0]
    return microbatches * total_s / stages


def interleaved_pipelines(
    problem: StageProblem, microbatches: int, mesh: int, stages: int, runs: int
) -> Iterator[tuple[PlacedRun, ...]]:
    """The most even split into runs, by the fastest points, then by smaller ones."""
    cuts = problem.all_cuts
    for price in PRICES:
        points = _chosen(problem, microbatches, mesh, price)
        slowest_s, ends = _partition(points, len(cuts) - 1, stages * runs, total=False)
        if slowest_s < inf:
            pairs = list(zip([0, *ends[:-1]], ends, strict=True))
            yield tuple(
                PlacedRun(cuts[a], cuts[b], index % stages, mesh, points[a, b]) for index, (a, b) in enumerate(pairs)
            )


def _chosen(problem: StageProblem, microbatches: int, mesh: int, price: float) -> dict[tuple[int, int], StagePoint]:
    cuts = problem.all_cuts
    found = {}
    for a in range(len(cuts) - 1):
        for b in range(a + 1, len(cuts)):
            offered = problem.points(cuts[a], cuts[b], mesh, microbatches)
            if offered:
                found[a, b] = min(offered, key=lambda point: _seconds(point) + price * point.cost.resident_bytes)
    return found


def _seconds(point: StagePoint) -> float:
    return point.cost.forward_s + point.cost.backward_s


def _partition(
    points: dict[tuple[int, int], StagePoint], length: int, runs: int, total: bool
) -> tuple[float, list[int]]:
    """Into exactly so many runs: the least sum of seconds, or the least maximum; and where the runs end."""
    best: list[float] = [0.0] + [inf] * length
    came: list[list[int]] = []
    for _ in range(runs):
        following, chosen = [inf] * (length + 1), [-1] * (length + 1)
        for (a, b), point in points.items():
            seconds = best[a] + _seconds(point) if total else max(best[a], _seconds(point))
            if best[a] < inf and seconds < following[b]:
                following[b], chosen[b] = seconds, a
        best = following
        came.append(chosen)
    ends: list[int] = []
    at = length
    for chosen in reversed(came):
        if best[length] == inf:
            break
        ends.append(at)
        at = chosen[at]
    return best[length], ends[::-1]
