"""A point for every instance of every segment, under the budget.

Without a budget the best chain is a shortest path over the layouts of the values alive between segments (`walk`): its
cost is the sum of the segments' tables. With a budget, and a price l per byte held,

    bound(l) = min over chains of (seconds + l * held) - l * budget

is below the optimum by weak duality; `walk` at rising PRICES gives these bounds and, with them, points to choose
from. Every combination of those points that fits along the chain is then compared (`_labels`): a label is (seconds,
bytes held, largest transient), and one that is no better in any of the three is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.errors import PlanError
from meshwright.layout import Layout
from meshwright.price.parameter import parameter_price
from meshwright.solve.frontier import Fixed, Frontier, Point
from meshwright.solve.space import LayoutSet

PRICES = (0.0, 1e-13, 1e-12, 3e-12, 1e-11, 3e-11, 1e-10, 1e-9, 1e-7)
"""Seconds per byte held: from a rounding error to a device that would rather move anything than keep it."""

BUCKETS = 2048
"""Labels that differ by less than this part of the budget in what they hold count as equal; the gap owns up to it."""

State = tuple[tuple[str, Layout], ...]
"""The layouts of the values alive between two segments, by name."""

At = tuple[LayoutSet, LayoutSet]


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


def solve_chain(
    frontier: Frontier, fixed: Fixed, budget_bytes: int | None, known_s: float = float("inf")
) -> Chain | None:
    """The fastest chain that fits, or None if none of the points found makes one faster than `known_s`.

    Prices are tried from low to high, up to the first whose chain fits: dearer bytes only make slower chains.
    """
    offers: list[dict[At, list[Point]]] = [{} for _ in frontier.program.segments]
    fitting: list[tuple[Point, ...]] = []
    bound_s = 0.0
    for price in PRICES:
        cost, path = walk(frontier, fixed, price)
        bound_s = max(bound_s, cost - price * (budget_bytes or 0))
        if bound_s >= known_s:
            return None
        points = _points(frontier, fixed, path, price)
        for offered, at, point in zip(offers, path, points, strict=True):
            if point not in offered.setdefault(at, []):
                offered[at].append(point)
        if budget_bytes is None or Chain(points, 0.0).peak_bytes <= budget_bytes:
            fitting.append(points)
            break
    mixed = _labels(frontier, offers, budget_bytes) if budget_bytes is not None and price > 0.0 else None
    fitting += [mixed] if mixed else []
    chains = [Chain(points, bound_s) for points in fitting]
    return min(chains, key=lambda chain: chain.seconds, default=None)


def least_bytes(frontier: Frontier, fixed: Fixed) -> int:
    """The peak of the chain found at the highest price per byte."""
    _, path = walk(frontier, fixed, PRICES[-1])
    return Chain(_points(frontier, fixed, path, PRICES[-1]), 0.0).peak_bytes


def _points(frontier: Frontier, fixed: Fixed, path: list[At], price: float) -> tuple[Point, ...]:
    return tuple(frontier.point(index, at, fixed, price) for index, at in enumerate(path))


def walk(frontier: Frontier, fixed: Fixed, price: float) -> tuple[float, list[At]]:
    """(least seconds + price * held, the boundary layouts of every segment) over all chains."""
    reached: dict[State, float] = {(): 0.0}
    history: list[dict[State, tuple[State, At]]] = []
    for index, segment in enumerate(frontier.program.segments):
        following: dict[State, float] = {}
        came: dict[State, tuple[State, At]] = {}
        for state, cost in reached.items():
            for at, more in _transitions(frontier, index, state, fixed, price):
                after = _after(frontier, index, state, at)
                if cost + more < following.get(after, np.inf):
                    following[after], came[after] = cost + more, (state, at)
        if not following:
            raise PlanError(
                f"the pins leave no way to run segment {segment.name}", "pins that agree", "drop one of them"
            )
        reached = following
        history.append(came)
    state = min(reached, key=lambda key: reached[key])
    total = reached[state] + _fixed_cost(frontier, fixed, price)
    path: list[At] = []
    for came in reversed(history):
        state, at = came[state]
        path.append(at)
    return total, path[::-1]


def _transitions(
    frontier: Frontier, index: int, state: State, fixed: Fixed, price: float
) -> Iterator[tuple[At, float]]:
    segment = frontier.program.segments[index]
    solved = frontier.solve(index, fixed, price)
    alive = dict(state)
    inputs = tuple(alive[name] for name in segment.inputs)
    rows = tuple(side.layouts.index(layout) for side, layout in zip(solved.segment.inputs, inputs, strict=True))
    costs = solved.costs[rows]
    for columns in np.ndindex(*costs.shape):
        if np.isfinite(costs[columns]):
            outputs = tuple(side.layouts[i] for side, i in zip(solved.segment.outputs, columns, strict=True))
            yield (inputs, outputs), float(costs[columns])


def _after(frontier: Frontier, index: int, state: State, at: At) -> State:
    """What is alive once the segment has run: what later segments read."""
    later = {name for segment in frontier.program.segments[index + 1 :] for name in segment.inputs}
    alive = dict(state) | dict(zip(frontier.program.segments[index].outputs, at[1], strict=True))
    return tuple(sorted((item for item in alive.items() if item[0] in later), key=lambda item: item[0]))


def _fixed_cost(frontier: Frontier, fixed: Fixed, price: float) -> float:
    """Tied parameters are no part of any segment's table: they are charged once, here."""
    total = 0.0
    for name, plan in fixed.items():
        uses = frontier.program.uses_of(name)
        segment = frontier.program.segments[uses[0]]
        value = frontier.space(segment).graph.params[segment.params.index(name)]
        found = parameter_price(value, plan, frontier.mesh, frontier.optimizer, len(uses))
        total += found.total_s + price * found.static_bytes
    return total


@dataclass(frozen=True, slots=True)
class _Label:
    seconds: float
    held: int
    transient: int
    point: Point | None = None
    before: _Label | None = None

    def then(self, point: Point) -> _Label:
        found = point.point
        transient = max(self.transient, found.transient_bytes)
        return _Label(self.seconds + found.total_s, self.held + found.held_bytes, transient, point, self)

    def points(self) -> tuple[Point, ...]:
        found = []
        label: _Label | None = self
        while label is not None and label.point is not None:
            found.append(label.point)
            label = label.before
        return tuple(reversed(found))


def _labels(frontier: Frontier, offers: list[dict[At, list[Point]]], budget_bytes: int) -> tuple[Point, ...] | None:
    """The fastest combination of the offered points that fits."""
    reached: dict[State, list[_Label]] = {(): [_Label(0.0, 0, 0)]}
    for index, offered in enumerate(offers):
        following: dict[State, list[_Label]] = {}
        names = frontier.program.segments[index].inputs
        for state, labels in reached.items():
            inputs = tuple(dict(state)[name] for name in names)
            for at, points in offered.items():
                if at[0] == inputs:
                    after = _after(frontier, index, state, at)
                    following.setdefault(after, []).extend(label.then(point) for point in points for label in labels)
        reached = {state: _undominated(labels, budget_bytes) for state, labels in following.items()}
    final = [label for labels in reached.values() for label in labels]
    return min(final, key=lambda label: label.seconds).points() if final else None


def _undominated(labels: list[_Label], budget_bytes: int) -> list[_Label]:
    width = max(1, budget_bytes // BUCKETS)
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda one: (one.seconds, one.held, one.transient)):
        if label.held + label.transient > budget_bytes:
            continue
        if not any(o.held - label.held < width and o.transient - label.transient < width for o in kept):
            kept.append(label)
    return kept
