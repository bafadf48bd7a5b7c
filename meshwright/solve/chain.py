"""A point for every instance of every segment, under the budget: dynamic programming along the chain.

A label at a boundary is (seconds, bytes held, largest transient); one that is no better in any of the three is
dropped. With prices per byte 0 = l_0 < l_1 < ..., each segment offers its best point at each price; for any of
the prices

    bound(l) = min over chains of (seconds + l * held) - l * (budget - least transient)

is below the optimum by weak duality, so the largest of them is a lower bound. `cheapest` is the chain without a
budget, `chain` the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.errors import PlanError
from meshwright.solve.frontier import Fixed, Frontier, Point
from meshwright.solve.space import LayoutSet

PRICES = (0.0, 1e-13, 1e-12, 1e-11, 1e-10, 1e-8)
"""Seconds per byte held: from a rounding error to a device that would rather move anything than keep it."""

BUCKETS = 2048
"""Labels that differ by less than this part of the budget in what they hold count as equal; the gap owns up to it."""


@dataclass(frozen=True, slots=True)
class Chain:
    """points[i]: what segment i does. bound_s: no chain of this space is faster."""

    points: tuple[Point, ...]
    bound_s: float

    @property
    def seconds(self) -> float:
        return sum(point.point.total_s for point in self.points)

    @property
    def held_bytes(self) -> int:
        return sum(point.point.held_bytes for point in self.points)

    @property
    def transient_bytes(self) -> int:
        return max(point.point.transient_bytes for point in self.points)

    @property
    def peak_bytes(self) -> int:
        return self.held_bytes + self.transient_bytes


@dataclass(frozen=True, slots=True)
class _Label:
    seconds: float
    held: int
    transient: int
    point: Point | None = None
    before: _Label | None = None

    def then(self, point: Point) -> _Label:
        found = point.point
        return _Label(
            self.seconds + found.total_s,
            self.held + found.held_bytes,
            max(self.transient, found.transient_bytes),
            point,
            self,
        )

    def points(self) -> tuple[Point, ...]:
        found = []
        label: _Label | None = self
        while label is not None and label.point is not None:
            found.append(label.point)
            label = label.before
        return tuple(reversed(found))


def solve_chain(frontier: Frontier, fixed: Fixed, budget_bytes: int | None) -> Chain | None:
    """The fastest chain that fits, or None if none of the points found makes one."""
    free = _run(frontier, fixed, (0.0,), 0.0)
    if not free:
        return None
    best = Chain(free[0].points(), free[0].seconds)
    if budget_bytes is None or best.peak_bytes <= budget_bytes:
        return best
    # The tightest chain is kept beside the labels, which may lose it to one that is within a bucket of it.
    labels = [*_run(frontier, fixed, PRICES, None, budget_bytes), *_run(frontier, fixed, PRICES, PRICES[-1])]
    labels = [label for label in labels if label.held + label.transient <= budget_bytes]
    if not labels:
        return None
    bound_s = max(best.seconds, *(_bound(frontier, fixed, price, budget_bytes) for price in PRICES[1:]))
    return Chain(min(labels, key=lambda label: label.seconds).points(), bound_s)


def least_bytes(frontier: Frontier, fixed: Fixed) -> int | None:
    """The smallest peak that any chain of the points found has."""
    tightest = _run(frontier, fixed, PRICES, PRICES[-1])
    return min((label.held + label.transient for label in tightest), default=None)


def _bound(frontier: Frontier, fixed: Fixed, price: float, budget_bytes: int) -> float:
    labels = _run(frontier, fixed, (price,), price)
    return min(label.seconds + price * label.held for label in labels) - price * budget_bytes


def _run(
    frontier: Frontier, fixed: Fixed, prices: Sequence[float], weight: float | None, budget_bytes: int | None = None
) -> list[_Label]:
    """Labels at the end of the chain, within the budget if there is one.

    With a `weight` only the best under seconds + weight * held is kept at each boundary.
    """
    states: dict[LayoutSet, list[_Label]] = {(): [_Label(0.0, 0, 0)]}
    for index, segment in enumerate(frontier.program.segments):
        following: dict[LayoutSet, list[_Label]] = {}
        possible = False
        for outputs in _outputs(frontier, index):
            found = []
            for inputs, labels in states.items():
                points = [frontier.point(index, inputs, outputs, fixed, price) for price in prices]
                distinct = {id(point): point for point in points if point is not None}
                found += [label.then(point) for point in distinct.values() for label in labels]
            possible = possible or bool(found)
            kept = _best(found, weight, budget_bytes)
            if kept:
                following[outputs] = kept
        if not following and possible:
            return []
        if not possible:
            raise PlanError(
                f"the pins leave no way to run segment {segment.name}", "pins that agree", "drop one of them"
            )
        states = following
    return [label for labels in states.values() for label in labels]


def _outputs(frontier: Frontier, index: int) -> list[LayoutSet]:
    return frontier.boundaries(frontier.program.segments[index])


def _best(labels: list[_Label], weight: float | None, budget_bytes: int | None) -> list[_Label]:
    if weight is not None:
        return [min(labels, key=lambda label: label.seconds + weight * label.held)] if labels else []
    limit = budget_bytes or max((label.held + label.transient for label in labels), default=1)
    width = max(1, limit // BUCKETS)
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda one: (one.seconds, one.held, one.transient)):
        if label.held + label.transient > limit:
            continue
        if not any(o.held - label.held < width and o.transient - label.transient < width for o in kept):
            kept.append(label)
    return kept
