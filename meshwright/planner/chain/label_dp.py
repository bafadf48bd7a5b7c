"""Label-setting dynamic programme: one way to run every segment of a chain, the fastest within a memory budget.

A way to run segment i takes c_i seconds, s_i static bytes (held during the whole step), r_i resident bytes (held from
its forward to its backward) and t_i transient bytes (on top, while it runs). The peak of a step is

    S + Q_0    with    S = sum of s_i    and    Q_i = r_i + max(t_i, Q_{i+1}),    Q_n = 0.            (1) `_extended`

Segments are walked from the last to the first. A label stands for a choice of all segments from i on: its seconds C,
its static bytes S, its total bytes T = S + Q_i, and its state, the options of the boundary values and tied weights that
earlier segments also see. (C, S, T) of a longer choice rises with each of the three, so of labels of one state only the
Pareto frontier is extended.                                                                          (2) `_undominated`

A label is dropped where its seconds plus a lower bound on those of the segments before i reach the incumbent. Weak
duality gives that bound for any price l >= 0 per byte. Write h_j = s_j + r_j. The total may not pass the budget B:

    seconds >= sum_{j<i} min(c_j + l h_j) - l (B - T)                                       (3) `LagrangianBound.before`

Nor may the peak of an earlier segment k < i, of which the label decides S alone:

    seconds >= sum_{j<k} min(c_j + l h_j) + min(c_k + l (h_k + t_k)) + sum_{k<j<i} min(c_j + l s_j) - l (B - S)      (4)

Both are piecewise linear and concave in l, apart from the maximum over k; `turning_prices` lists the prices at which
a slope may change. Bytes are added exactly, so every answer fits; without `beam` and `slots` it is optimal.

Callers: `solve_instances` (a fixed sharding: no boundary, no static bytes, optimal), `combine_offers` (ways of several
shardings) and `combine_chains` (points of several chains, whose bytes are all held during the whole step).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isqrt
from typing import Any

import numpy as np

from meshwright.select.problem import Floats, Ints

State = tuple[tuple[str, int], ...]
"""(name, option) of each boundary value and tied weight that is fixed already."""

ROUNDING = 1e-9
"""Relative slack when a bound is compared with the incumbent: it subtracts bytes at a price, which may be many times
the seconds that remain."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways to run one segment between the same boundary options. The arrays have one length.

    boundary: the option of each input, output and tied weight.
    """

    seconds: Floats
    static_bytes: Ints
    resident_bytes: Ints
    transient_bytes: Ints
    boundary: State = ()

    @property
    def held_bytes(self) -> Ints:
        return self.static_bytes + self.resident_bytes


@dataclass(frozen=True, slots=True)
class Solution:
    """picks: for each segment the index of its `Ways`, and of the way within them."""

    seconds: float
    picks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Labels:
    """Arrays of one length.

    parent: the label of the segment behind that this one extends.
    offer, way: what it chooses for the segment at hand.
    """

    seconds: Floats
    static: Ints
    total: Ints
    state: Ints
    parent: Ints
    offer: Ints
    way: Ints

    @property
    def columns(self) -> tuple[Any, ...]:
        return (self.seconds, self.static, self.total, self.state, self.parent, self.offer, self.way)

    def __getitem__(self, rows: Ints) -> _Labels:
        return _Labels(*(column[rows] for column in self.columns))


def label_dp(
    chain: Sequence[Sequence[Ways]],
    bound: LagrangianBound,
    incumbent_s: float = inf,
    beam: int | None = None,
    slots: int | None = None,
) -> Solution | None:
    """The fastest choice within the bound's budget; None where none is found faster than the incumbent.

    chain: for each segment its ways, grouped by boundary options.
    incumbent_s: only faster choices are looked for, in seconds.
    beam: labels extended at each segment, those of the best bounds; None extends all.
    slots: parts of the budget to which total bytes are rounded down when labels are compared, static bytes to the
        square root of as many; None compares bytes.
    """
    first: dict[str, int] = {}
    for index, offers in enumerate(chain):
        for name, _ in (pair for ways in offers for pair in ways.boundary):
            first.setdefault(name, index)
    zero = np.zeros(1, dtype=np.int64)
    labels = _Labels(np.zeros(1), zero, zero, zero, zero, zero, zero)
    states: dict[State, int] = {(): 0}
    history: list[_Labels] = []
    for index in reversed(range(len(chain))):
        following: dict[State, int] = {}
        parts: list[tuple[_Labels, Floats]] = []
        for state, number in states.items():
            rows = np.flatnonzero(labels.state == number)
            for offer, ways in enumerate(chain[index]):
                before = _before(index, dict(state), ways.boundary, first) if len(rows) else None
                if before is not None:
                    target = following.setdefault(before, len(following))
                    parts.append(_extended(labels, rows, ways, (target, offer), bound, index, incumbent_s))
        if not parts:
            return None
        labels = _Labels(*map(np.concatenate, zip(*(part.columns for part, _ in parts), strict=True)))
        if not len(labels.seconds):
            return None
        kept = _undominated(labels, bound.budget_bytes, slots)
        if beam is not None and len(kept) > beam:
            lower_s = np.concatenate([lower for _, lower in parts])[kept]
            kept = kept[np.argpartition(lower_s, beam)[:beam]]
        labels, states = labels[kept], following
        history.append(labels)
    best = int(labels.seconds.argmin())
    seconds = float(labels.seconds[best])
    return Solution(seconds, tuple(_picks(history, best))) if seconds < incumbent_s else None


def _before(index: int, fixed: dict[str, int], boundary: State, first: dict[str, int]) -> State | None:
    """The state of a label with this segment in front; None where the options of a value differ.

    first: the first segment that sees each value.
    """
    if any(fixed.get(name, option) != option for name, option in boundary):
        return None
    return tuple(sorted((name, option) for name, option in (fixed | dict(boundary)).items() if first[name] < index))


def _extended(
    labels: _Labels,
    rows: Ints,
    ways: Ways,
    numbers: tuple[int, int],
    bound: LagrangianBound,
    index: int,
    incumbent_s: float,
) -> tuple[_Labels, Floats]:
    """Equation (1): these labels with each way of segment `index` in front; and the bound of each in seconds.

    numbers: of the new state, and of the ways among the segment's.
    """
    behind = (labels.total[rows] - labels.static[rows])[:, None]
    static = (labels.static[rows][:, None] + ways.static_bytes).ravel()
    total = static + (np.maximum(behind, ways.transient_bytes) + ways.resident_bytes).ravel()
    seconds = (labels.seconds[rows][:, None] + ways.seconds).ravel()
    fits = np.flatnonzero(total <= bound.room_bytes[index])
    lower_s = seconds[fits] + bound.before(index, static[fits], total[fits])
    promising = lower_s <= incumbent_s * (1 + ROUNDING)
    places = fits[promising]
    parent, way = np.divmod(places, len(ways.seconds))
    state, offer = (np.full(len(places), number) for number in numbers)
    return _Labels(seconds[places], static[places], total[places], state, rows[parent], offer, way), lower_s[promising]


def _undominated(labels: _Labels, budget_bytes: int, slots: int | None) -> Ints:
    """Equation (2): places of the labels that no other of their state beats in seconds, static and total bytes."""
    coarse, fine = (1, 1) if slots is None else (max(1, budget_bytes // parts) for parts in (isqrt(slots), slots))
    level, slot = labels.static // coarse, labels.total // fine
    if not (labels.state.any() or np.ptp(level)):  # two criteria: a running minimum
        order = np.lexsort((labels.seconds, slot))
        seconds = labels.seconds[order]
        return order[seconds < np.concatenate(([inf], np.minimum.accumulate(seconds)[:-1]))]
    if slots is None:
        level, slot = (np.unique(sizes, return_inverse=True)[1] for sizes in (level, slot))
    shape = (int(labels.state.max()) + 1, int(level.max()) + 1, int(slot.max()) + 1)
    cell = (labels.state * shape[1] + level) * shape[2] + slot
    slowest_first = np.argsort(-labels.seconds, kind="stable")
    fastest = np.full(shape, -1)
    fastest.flat[cell[slowest_first]] = slowest_first  # the last one stays
    used = fastest >= 0
    table = np.full(shape, inf)
    table[used] = labels.seconds[fastest[used]]
    reached = np.minimum.accumulate(np.minimum.accumulate(table, axis=2), axis=1)
    used[:, :, 1:] &= table[:, :, 1:] < reached[:, :, :-1]
    used[:, 1:] &= table[:, 1:] < reached[:, :-1]
    return fastest[used]


def _picks(history: Sequence[_Labels], label: int) -> Iterator[tuple[int, int]]:
    for labels in reversed(history):
        yield int(labels.offer[label]), int(labels.way[label])
        label = int(labels.parent[label])


class LagrangianBound:
    """Lower bounds on the seconds of the segments before one, for labels of a chain under a budget.

    room_bytes: at each segment, more total bytes do not leave enough for the segments before it.
    """

    def __init__(self, chain: Sequence[Sequence[Ways]], budget_bytes: int) -> None:
        rows = [_merged(offers) for offers in chain]
        self.budget_bytes = budget_bytes
        self.prices = prices = turning_prices((ways.held_bytes, ways.seconds) for ways in rows)
        self.room_bytes = [budget_bytes]
        self._held = [np.zeros(len(prices))]
        self._peak = [np.full(len(prices), -inf)]
        steps = np.diff(prices)
        self._falls = [np.zeros(len(steps))]
        for ways in rows:
            static = _least(ways.seconds, ways.static_bytes, prices)
            held = _least(ways.seconds, ways.held_bytes, prices)
            peak = _least(ways.seconds, ways.held_bytes + ways.transient_bytes, prices)
            self._peak.append(np.maximum(self._peak[-1] + static, self._held[-1] + peak))
            self._held.append(self._held[-1] + held)
            self._falls.append(-np.diff(self._held[-1]) / steps)
            fits = ways.held_bytes + ways.transient_bytes <= self.room_bytes[-1]
            self.room_bytes.append(self.room_bytes[-1] - int(ways.held_bytes[fits].min()) if fits.any() else -1)

    def before(self, index: int, static: Ints, total: Ints) -> Floats:
        """Equations (3) and (4): the seconds of the segments before `index`, given a label's static and total bytes."""
        sums, left = self._held[index], self.budget_bytes - total
        # Concave in the price: the highest is where it rises by no more than what is left.
        at = np.searchsorted(self._falls[index], -left)
        by_total = sums[at] - self.prices[at] * left
        if not index:
            return by_total
        left = self.budget_bytes - static
        best = int((self._peak[index] - self.prices * left.max(initial=0)).argmax())
        by_static: Floats = self._peak[index][best] - self.prices[best] * left
        return np.where(by_static > by_total, by_static, by_total)

    @property
    def seconds(self) -> float:
        """No choice within the budget is faster."""
        zero = np.zeros(1, dtype=np.int64)
        return float(self.before(len(self._held) - 1, zero, zero)[0])


def _merged(offers: Sequence[Ways]) -> Ways:
    """The ways between any boundary options."""
    columns = ((ways.seconds, ways.static_bytes, ways.resident_bytes, ways.transient_bytes) for ways in offers)
    seconds, static, resident, transient = map(np.concatenate, zip(*columns, strict=True))
    return Ways(seconds, static, resident, transient)


def _least(seconds: Floats, sizes: Ints, prices: Floats) -> Floats:
    """At each price per byte the cheapest way."""
    found: Floats = (seconds[:, None] + prices * sizes[:, None]).min(axis=0)
    return found


def turning_prices(options: Iterable[tuple[Ints, Floats]]) -> Floats:
    """Zero, and every price per byte at which another option of a segment becomes the cheapest: the slopes of the lower
    convex hulls.

    options: (bytes, seconds) of the options of each segment.
    """
    found = {0.0}
    for held, seconds in options:
        at = int(np.lexsort((held, seconds))[0])
        while (less := np.flatnonzero(held < held[at])).size:
            slopes = (seconds[less] - seconds[at]) / (held[at] - held[less])
            price = float(slopes.min())
            near = less[slopes == price]
            at = int(near[held[near].argmin()])
            found.add(price)
    return np.array(sorted(found))
