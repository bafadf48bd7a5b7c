"""Shardings met at several prices, mixed: for every instance one of them and one way to keep, under the true peak.

Walked from the last segment to the first. With s_i the static bytes of what instance i takes, r_i its resident and t_i
its transient bytes, the most that is in use from instance i on, beside what those before it hold, is

    Q_i = r_i + max(t_i, Q_{i+1}),    and    s_0 + s_1 + ... + Q_0    may not pass the budget.

A label (seconds, static so far, static so far + Q) that another one of the same state beats in all three is done with.
Labels of almost the same bytes are taken for one, so the answer always fits and need not be the best of all. Seconds
are weighed as a Frontier weighs them: what runs beside compute counts `beside` times, over 1 + `beside`; that is never
more than the step takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.plan import FrontierPoint
from meshwright.select.problem import Floats, Ints
from meshwright.solve.intra.frontier import Frontier, Options, Point
from meshwright.solve.intra.mix import Chain, State

STATIC_BUCKETS, BUCKETS = 64, 512


@dataclass(frozen=True, slots=True)
class Offer:
    """A sharding of one segment: between which boundary options, its point, and one point per way to keep."""

    options: Options
    sharding: Point
    ways: tuple[FrontierPoint, ...]


@dataclass(frozen=True, slots=True)
class _Labels:
    """Arrays of one length; after: the label of the segment behind that this one extends; pick: the offer."""

    seconds: Floats
    static: Ints
    total: Ints
    state: Ints
    after: Ints
    pick: Ints

    def taken(self, rows: Ints) -> _Labels:
        return _Labels(*(getattr(self, name)[rows] for name in _COLUMNS))


_COLUMNS = ("seconds", "static", "total", "state", "after", "pick")


def best_mixture(
    frontier: Frontier,
    offers: Sequence[Sequence[Offer]],
    budget_bytes: int,
    known_s: float,
    price: float,
    beside: float = 1.0,
) -> Chain | None:
    """The fastest mixture of what is offered to each segment; None where none is found faster than `known_s`."""
    micro = frontier.setting.microbatches
    first = _first_users(frontier)
    if not any(way.overlappable_s for found in offers for offer in found for way in offer.ways):
        beside = 0.0
    weighed = [[[_weighed_s(way, micro, beside) for way in offer.ways] for offer in found] for found in offers]
    least_s = [min(min(every) for every in found) for found in weighed]
    least = [min(way.held_bytes for offer in found for way in offer.ways) for found in offers]
    zero = np.zeros(1, dtype=np.int64)
    labels = _Labels(np.zeros(1), zero, zero, zero, zero, zero)
    states: dict[State, int] = {(): 0}
    history: list[_Labels] = []
    for index in reversed(range(len(offers))):
        following: dict[State, int] = {}
        parts = []
        for state, number in states.items():
            here = np.flatnonzero(labels.state == number)
            for pick, offer in enumerate(offers[index]):
                before = _before(frontier, index, dict(state), offer.options, first)
                if before is not None and len(here):
                    target = following.setdefault(before, len(following))
                    parts += list(_extended(labels, here, offer, target, pick, weighed[index][pick]))
        if not parts:
            return None
        joined = _Labels(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))
        hopeful = joined.seconds + sum(least_s[:index]) < known_s
        hopeful &= joined.total + sum(least[:index]) <= budget_bytes
        labels = _undominated(joined.taken(np.flatnonzero(hopeful)), budget_bytes)
        history.append(labels)
        states = following
        if not len(labels.seconds):
            return None
    label = int(labels.seconds.argmin())
    picked = []
    for found, offered in zip(reversed(history), offers, strict=True):
        picked.append(offered[found.pick[label]])
        label = int(found.after[label])
    return Chain(tuple(one.sharding for one in picked), tuple(one.options for one in picked), micro, price)


def _first_users(frontier: Frontier) -> dict[str, int]:
    """The segment that makes each boundary value, or reads a tied weight first."""
    found: dict[str, int] = {}
    for index in range(len(frontier.program.segments)):
        for name in frontier.boundary(index):
            found.setdefault(name, index)
    return found


def _before(
    frontier: Frontier, index: int, alive: dict[str, int], options: Options, first: dict[str, int]
) -> State | None:
    """What must be alive before the segment runs; None where it does not go with what later ones want."""
    here = dict(zip(frontier.boundary(index), options, strict=True))
    if any(alive.get(name, option) != option for name, option in here.items()):
        return None
    return tuple(sorted((name, option) for name, option in (alive | here).items() if first[name] < index))


def _weighed_s(way: FrontierPoint, microbatches: int, beside: float) -> float:
    """A lower bound on what it adds to a step."""
    alone_s = way.seconds(microbatches) - way.overlappable_s - way.step_s
    return (alone_s + beside * way.overlappable_s) / (1 + beside) + way.step_s


def _extended(
    labels: _Labels, here: Ints, offer: Offer, target: int, pick: int, seconds: Sequence[float]
) -> Iterator[_Labels]:
    same = np.ones(len(here), dtype=np.int64)
    for way, way_s in zip(offer.ways, seconds, strict=True):
        static = labels.static[here] + way.static_bytes
        behind = labels.total[here] - labels.static[here]
        total = static + way.resident_bytes + np.maximum(behind, way.transient_bytes)
        yield _Labels(labels.seconds[here] + way_s, static, total, target * same, here, pick * same)


def _undominated(labels: _Labels, budget: int) -> _Labels:
    wide, narrow = max(1, budget // STATIC_BUCKETS), max(1, budget // BUCKETS)
    group = labels.state * (STATIC_BUCKETS + 2) + np.minimum(labels.static // wide, STATIC_BUCKETS + 1)
    order = np.lexsort((labels.seconds, labels.total // narrow, group))
    keys = group[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    kept = []
    for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        seconds = labels.seconds[order[start:end]]
        least = np.minimum.accumulate(np.concatenate(([np.inf], seconds[:-1])))
        kept.append(order[start:end][seconds < least])
    return labels.taken(np.concatenate(kept) if kept else order[:0])
