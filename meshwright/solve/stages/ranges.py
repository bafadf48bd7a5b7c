"""Points of ranges from points of single segments, and where a long chain may be cut.

Segments of one kind share their points. At a price per byte every kind takes the point on its lower hull that is
cheapest; where the price passes from one to the next, a part of the segments has changed already: 7 of 32 layers
recompute. So a range's points are sums over kinds, and finding them does not grow with the number of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from operator import attrgetter

import numpy as np

from meshwright.errors import PlanError
from meshwright.simulate import SegmentCost
from meshwright.solve.stages.problem import StagePoint

Offers = Callable[[Hashable, int, int], Sequence[StagePoint]]
"""(kind, mesh class, micro-batches) -> ways to run one segment of the kind there."""

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

PARTS = 4
"""A range stops so often between two points of a kind."""

IN_FLIGHT = (1, 4, 16)
"""Micro-batches held for which points are weighed: one byte kept per micro-batch counts so many times."""

NAMES = tuple(entry.name for entry in fields(SegmentCost))[:12]

_figures: Callable[[SegmentCost], tuple[float, ...]] = attrgetter(*NAMES)


@dataclass(frozen=True, slots=True)
class Mix:
    """What a range's segments do: for each kind, how many take which of its points."""

    counts: tuple[tuple[Hashable, StagePoint, int], ...]


def range_points(kinds: Sequence[Hashable], offers: Offers) -> Callable[[int, int, int, int], tuple[StagePoint, ...]]:
    """The `points` of a StageProblem whose segment i is of kind kinds[i]; a point's choice is a Mix.

    Points are combined layout by layout: within a stage the boundary keeps the one in which it came.
    """

    @cache
    def paths(mesh: int, microbatches: int, present: tuple[Hashable, ...]) -> tuple[_Path, ...]:
        offered = {kind: offers(kind, mesh, microbatches) for kind in present}
        layouts = sorted({point.enter for points in offered.values() for point in points}, key=str)
        found = []
        for layout in layouts:
            own = {k: [p for p in points if p.enter == p.leave == layout] for k, points in offered.items()}
            if all(own.values()):
                found += [_path(own, layout, weight, microbatches) for weight in IN_FLIGHT]
        return tuple(found)

    @cache
    def points(first: int, end: int, mesh: int, microbatches: int) -> tuple[StagePoint, ...]:
        counts = Counter(kinds[first:end])
        present = tuple(sorted(counts, key=str))
        many = np.array([counts[kind] for kind in present])
        found: list[StagePoint] = []
        for path in paths(mesh, microbatches, present):
            found += path.points(many)
        return tuple(_undominated(found))

    return points


@dataclass(frozen=True, slots=True)
class _Path:
    """Levels from the fastest to the smallest. before, after: [level, kind, figure]; part: [level, kind]."""

    layout: Hashable
    kinds: tuple[Hashable, ...]
    chosen: tuple[tuple[tuple[StagePoint, StagePoint], ...], ...]
    before: Floats
    after: Floats
    part: Floats

    def points(self, many: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[StagePoint]:
        changed = np.floor(self.part * many + 1e-9)
        stay = many - changed
        sums = (stay[..., None] * self.before + changed[..., None] * self.after).sum(axis=1)
        used = np.maximum(
            np.where(stay[..., None] > 0, self.before, 0), np.where(changed[..., None] > 0, self.after, 0)
        )
        largest = used.max(axis=1)
        found = []
        for level in range(len(sums)):
            figures = sums[level].tolist()
            whole = [int(figure) for figure in figures[7:9]] + [int(figure) for figure in largest[level, 9:11]]
            counts = tuple(
                (kind, point, int(count))
                for i, kind in enumerate(self.kinds)
                for point, count in zip(self.chosen[level][i], (stay[level, i], changed[level, i]), strict=True)
                if count
            )
            cost = SegmentCost(**dict(zip(NAMES, [*figures[:7], *whole, figures[11]], strict=True)))
            found.append(StagePoint(cost, self.layout, self.layout, Mix(counts)))
        return found


def _path(own: dict[Hashable, list[StagePoint]], layout: Hashable, weight: int, microbatches: int) -> _Path:
    kinds = tuple(own)
    hulls = [_hull(own[kind], weight, microbatches) for kind in kinds]
    steps = sorted(
        (price, i, j) for i, hull in enumerate(hulls) for j, price in enumerate(_prices(hull, weight, microbatches))
    )
    at = [0] * len(kinds)
    chosen = [tuple((hulls[i][at[i]], hulls[i][at[i]]) for i in range(len(kinds)))]
    parts: list[list[float]] = [[0.0] * len(kinds)]
    for _, i, j in steps:
        for part in range(1, PARTS + 1):
            pair = [(hulls[k][at[k]], hulls[k][at[k]]) for k in range(len(kinds))]
            pair[i] = (hulls[i][j], hulls[i][j + 1])
            chosen.append(tuple(pair))
            parts.append([part / PARTS if k == i else 0.0 for k in range(len(kinds))])
        at[i] = j + 1
    figures = [[[_figures(point.cost) for point in pair] for pair in level] for level in chosen]
    array = np.array(figures, dtype=float)
    return _Path(layout, kinds, tuple(chosen), array[:, :, 0], array[:, :, 1], np.array(parts))


def _seconds(point: StagePoint, microbatches: int) -> float:
    cost = point.cost
    return microbatches * (cost.forward_s + cost.backward_s) + cost.first_s + cost.last_s + cost.step_s


def _bytes(point: StagePoint, weight: int) -> float:
    return point.cost.static_bytes + weight * point.cost.resident_bytes


def _hull(points: list[StagePoint], weight: int, microbatches: int) -> list[StagePoint]:
    """From the fastest to the smallest, each step dearer per byte than the one before."""
    found: list[StagePoint] = []
    for point in sorted(points, key=lambda point: (_seconds(point, microbatches), _bytes(point, weight))):
        if found and _bytes(point, weight) >= _bytes(found[-1], weight):
            continue
        while len(found) > 1 and _price(found[-2], found[-1], weight, microbatches) >= _price(
            found[-1], point, weight, microbatches
        ):
            found.pop()
        found.append(point)
    return found


def _price(one: StagePoint, other: StagePoint, weight: int, microbatches: int) -> float:
    saved = _bytes(one, weight) - _bytes(other, weight)
    return (_seconds(other, microbatches) - _seconds(one, microbatches)) / saved


def _prices(hull: list[StagePoint], weight: int, microbatches: int) -> list[float]:
    return [_price(a, b, weight, microbatches) for a, b in pairwise(hull)]


def _undominated(points: list[StagePoint]) -> list[StagePoint]:
    kept: list[StagePoint] = []
    for point in sorted(points, key=lambda point: _figures(point.cost)[:3]):
        figures = _figures(point.cost)
        worse = (
            point.enter == other.enter and all(a <= b for a, b in zip(_figures(other.cost), figures, strict=True))
            for other in kept
        )
        if not any(worse):
            kept.append(point)
    return kept


def cluster(weights: Sequence[float], most: int) -> tuple[int, ...]:
    """At most `most` clusters of consecutive segments, the heaviest as light as can be; where they begin and end."""
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
