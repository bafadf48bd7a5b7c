"""Chains, and the fastest mixture of several: for each segment one of the points they take there, under the budget.

Labels (seconds, bytes held, largest transient) are carried along the chain, one set per state of what is alive. Held
bytes are rounded up to a part of the budget (RESOLUTION); among labels of one transient, one that is slower and holds
no less is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.plan import FrontierPoint
from meshwright.planner.effort import RESOLUTION
from meshwright.planner.sharding.model import Options, Point, ShardingModel
from meshwright.price.overlap import host_waits_s, overlapped, pending_grad_bytes
from meshwright.select.problem import Floats, Ints

State = tuple[tuple[str, int], ...]
"""The options taken by what is alive between two segments."""


@dataclass(frozen=True)
class Chain:
    """points[i]: what segment i does, between the boundary options[i]. price: per byte, at which it was found.

    seconds: of a step as it is executed. peak_bytes: with gradients that wait for their reduction.
    """

    points: tuple[Point, ...]
    options: tuple[Options, ...]
    microbatches: int
    price: float = 0.0

    @cached_property
    def seconds(self) -> float:
        return overlapped(self._points, self.microbatches)

    @property
    def host_s(self) -> float:
        """What of it devices wait for their hosts' kernel launches."""
        return host_waits_s(self._points, self.microbatches)

    def weighed_s(self, overlap_weight: float | None) -> float:
        """What overlaps compute counted at this weight, as a ShardingModel does."""
        total_s = sum(point.seconds(self.microbatches) for point in self._points)
        overlapped_s = sum(point.async_comm_s for point in self._points)
        if overlap_weight is None or not overlapped_s:
            return total_s
        after_s = sum(point.step_s for point in self._points)
        return total_s + (overlap_weight - 1) * overlapped_s + overlap_weight * after_s

    @cached_property
    def _points(self) -> list[FrontierPoint]:
        return [point.point for point in self.points]

    @cached_property
    def static_bytes(self) -> int:
        return sum(point.point.static_bytes for point in self.points)

    @cached_property
    def held_bytes(self) -> int:
        return sum(point.point.held_bytes for point in self.points)

    @property
    def transient_bytes(self) -> int:
        return max(point.point.transient_bytes for point in self.points)

    @cached_property
    def peak_bytes(self) -> int:
        return self.held_bytes + self.transient_bytes + pending_grad_bytes(self._points, self.microbatches)


@dataclass(frozen=True, slots=True)
class _Labels:
    """Arrays of one length. `transient` is an index in the ascending list of all transients; before: the label of the
    previous segment's state that this one extends, pick: the offered point."""

    seconds: Floats
    held: Ints
    transient: Ints
    state: Ints
    before: Ints
    pick: Ints


def combine_chains(shardings: ShardingModel, chains: list[Chain], budget_bytes: int) -> list[Chain]:
    """The fastest mixture that fits: none, or one. `chains` are of one ShardingModel."""
    micro = shardings.setting.microbatches
    width = max(1, budget_bytes // RESOLUTION)
    transients = sorted({point.point.transient_bytes for chain in chains for point in chain.points})
    room = [(budget_bytes - transient) // width for transient in transients]
    states: dict[State, int] = {(): 0}
    empty = np.zeros(1, dtype=np.int64)
    labels = _Labels(np.zeros(1), empty, empty, empty, empty, empty)
    history = []
    for index in range(len(shardings.program.segments)):
        offered = _offered(chains, index)
        following: dict[State, int] = {}
        parts = []
        for state, number in states.items():
            here = np.flatnonzero(labels.state == number)
            for pick, (options, point) in enumerate(offered):
                after = _after(shardings, index, dict(state), options)
                if after is None or not len(here):
                    continue
                found = point.point
                level = transients.index(found.transient_bytes)
                target = following.setdefault(after, len(following))
                parts.append(
                    _Labels(
                        labels.seconds[here] + found.seconds(micro),
                        labels.held[here] + -(-found.held_bytes // width),
                        np.maximum(labels.transient[here], level),
                        np.full(len(here), target),
                        here,
                        np.full(len(here), pick),
                    )
                )
        if not parts:
            return []
        labels = _undominated(parts, np.array(room))
        history.append((labels, offered))
        states = following
    if not len(labels.seconds):
        return []
    return [_read(history, int(labels.seconds.argmin()), micro, chains[-1].price)]


def _offered(chains: list[Chain], index: int) -> list[tuple[Options, Point]]:
    met = {(chain.options[index], id(chain.points[index])): chain for chain in chains}
    return [(chain.options[index], chain.points[index]) for chain in met.values()]


def _after(shardings: ShardingModel, index: int, alive: dict[str, int], options: Options) -> State | None:
    """What is alive once the segment has run; None where it does not go with what is alive before."""
    here = dict(zip(shardings.boundary(index), options, strict=True))
    if any(alive.get(name, option) != option for name, option in here.items()):
        return None
    left = ((name, option) for name, option in (alive | here).items() if shardings.last_reader.get(name, -1) > index)
    return tuple(sorted(left))


def _undominated(parts: list[_Labels], room: Ints) -> _Labels:
    names = ("seconds", "held", "transient", "state", "before", "pick")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    order = np.lexsort((columns["seconds"], columns["held"], columns["transient"], columns["state"]))
    order = order[columns["held"][order] <= room[columns["transient"][order]]]
    kept = []
    groups = columns["state"][order] * len(room) + columns["transient"][order]
    for group in np.unique(groups):
        rows = order[groups == group]
        seconds = columns["seconds"][rows]
        least = np.minimum.accumulate(np.concatenate(([np.inf], seconds[:-1])))
        kept.append(rows[seconds < least])
    rows = np.concatenate(kept) if kept else order[:0]
    return _Labels(*(columns[name][rows] for name in names))


def _read(history: list[tuple[_Labels, list[tuple[Options, Point]]]], label: int, micro: int, price: float) -> Chain:
    picks = []
    for labels, offered in reversed(history):
        picks.append(offered[labels.pick[label]])
        label = int(labels.before[label])
    picks.reverse()
    return Chain(tuple(point for _, point in picks), tuple(options for options, _ in picks), micro, price)
