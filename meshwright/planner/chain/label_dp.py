"""Shardings met at several prices, mixed: for every instance one of them and one way to keep, under the true peak.

Walked from the last segment to the first. With s_i the static bytes of what instance i takes, r_i its resident and t_i
its transient bytes, the most that is in use from instance i on, besides what those before it hold, is

    Q_i = r_i + max(t_i, Q_{i+1}),    and    s_0 + s_1 + ... + Q_0    may not pass the budget.

A label (seconds, static so far, static so far + Q) that another one of the same state beats in all three is done with.
Labels of almost the same bytes are taken for one, and the RESOLUTION that promise most are followed: so the answer
always fits, and need not be the best of all. What a label promises is its seconds and, for the instances before it,
Lagrange's bound: with h the bytes that one holds and B what the budget leaves, for any price l

    seconds of the rest >= sum of min (seconds + l * h) - l * B.

Seconds are weighed as a ShardingModel weighs them: communication that overlaps with compute counts `overlap_weight`
times, and the sum is divided by 1 + `overlap_weight`. That is a lower bound on the step. The order of equal segments
(`permute_equal_segments`) decides how near the step comes to it.
`crossover` puts the first instances of one mixture before the last ones of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

import numpy as np

from meshwright.plan import FrontierPoint
from meshwright.planner.chain.mix import Chain, State
from meshwright.planner.effort import RESOLUTION
from meshwright.planner.memory.instances import turning_prices
from meshwright.planner.sharding.model import Options, Point, ShardingModel
from meshwright.predict.fast import quick_prediction
from meshwright.price.overlap import overlapped
from meshwright.select.problem import Floats, Ints


@dataclass(frozen=True, slots=True)
class SegmentOffer:
    """A sharding of one segment: between which boundary options, its point, and one point per way to keep."""

    options: Options
    sharding: Point
    ways: tuple[FrontierPoint, ...]


@dataclass(frozen=True)
class RematChain:
    """ways: what every instance keeps, of what the chain's points may."""

    chain: Chain
    ways: tuple[FrontierPoint, ...]

    @cached_property
    def seconds(self) -> float:
        return overlapped(self.ways, self.chain.microbatches)

    @cached_property
    def least_s(self) -> float:
        """What it takes if all is hidden that can be."""
        overlapped_s, after_s = sum(way.async_comm_s for way in self.ways), sum(way.step_s for way in self.ways)
        alone_s = sum(way.seconds(self.chain.microbatches) for way in self.ways) - overlapped_s - after_s
        return max(alone_s, overlapped_s) + after_s

    @cached_property
    def peak_bytes(self) -> int:
        return quick_prediction(self.ways, self.chain.microbatches, exact_peak=True).peak_bytes


@dataclass(frozen=True, slots=True)
class _Labels:
    """Arrays of one length; after: the label of the segment behind that this one extends; pick, way: the offer, and
    what is kept of it."""

    seconds: Floats
    static: Ints
    total: Ints
    state: Ints
    after: Ints
    pick: Ints
    way: Ints

    def taken(self, rows: Ints) -> _Labels:
        return _Labels(*(getattr(self, name)[rows] for name in _COLUMNS))


_COLUMNS = ("seconds", "static", "total", "state", "after", "pick", "way")


def label_dp(
    shardings: ShardingModel,
    offers: Sequence[Sequence[SegmentOffer]],
    budget_bytes: int,
    incumbent_s: float,
    price: float,
    overlap_weight: float = 1.0,
) -> RematChain | None:
    """The fastest mixture of what is offered to each segment; None where none is found faster than `incumbent_s`."""
    micro = shardings.setting.microbatches
    first = _first_users(shardings)
    if not any(way.async_comm_s for found in offers for offer in found for way in offer.ways):
        overlap_weight = 0.0
    weighed = [[[_weighed_s(way, micro, overlap_weight) for way in offer.ways] for offer in found] for found in offers]
    bounds = _Bounds(offers, weighed)
    zero = np.zeros(1, dtype=np.int64)
    labels = _Labels(np.zeros(1), zero, zero, zero, zero, zero, zero)
    states: dict[State, int] = {(): 0}
    history: list[_Labels] = []
    for index in reversed(range(len(offers))):
        following: dict[State, int] = {}
        parts = []
        for state, number in states.items():
            here = np.flatnonzero(labels.state == number)
            for pick, offer in enumerate(offers[index]):
                before = _before(shardings, index, dict(state), offer.options, first)
                if before is not None and len(here):
                    target = following.setdefault(before, len(following))
                    parts += list(_extended(labels, here, offer, target, pick, weighed[index][pick]))
        if not parts:
            return None
        joined = _Labels(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))
        promise = joined.seconds + bounds.before(index, budget_bytes - joined.total)
        places = np.flatnonzero(promise < incumbent_s)
        left = _undominated(joined.taken(places), budget_bytes)
        if len(left) > RESOLUTION:
            left = left[np.argpartition(promise[places[left]], RESOLUTION)[:RESOLUTION]]
        labels = joined.taken(places[left])
        history.append(labels)
        states = following
        if not len(labels.seconds):
            return None
    label = int(labels.seconds.argmin())
    picked, ways = [], []
    for found, offered in zip(reversed(history), offers, strict=True):
        picked.append(offered[found.pick[label]])
        ways.append(picked[-1].ways[found.way[label]])
        label = int(found.after[label])
    chain = Chain(tuple(one.sharding for one in picked), tuple(one.options for one in picked), micro, price)
    return RematChain(chain, tuple(ways))


def undominated(offers: Sequence[SegmentOffer]) -> list[SegmentOffer]:
    """Without ways that another between the same boundary options beats in bytes and both kinds of seconds."""
    rows = [(offer, way, np.array(_figures(way))) for offer in offers for way in offer.ways]
    left: dict[int, list[FrontierPoint]] = {id(offer): [] for offer in offers}
    for number, (offer, way, mine) in enumerate(rows):
        beaten = any(
            other.options == offer.options and (theirs <= mine).all() and ((theirs < mine).any() or place < number)
            for place, (other, _, theirs) in enumerate(rows)
            if place != number
        )
        if not beaten:
            left[id(offer)].append(way)
    kept = [(offer, left[id(offer)]) for offer in offers]
    return [SegmentOffer(offer.options, offer.sharding, tuple(ways)) for offer, ways in kept if ways]


def _figures(way: FrontierPoint) -> tuple[float, ...]:
    alone_s = way.forward_s + way.backward_s
    return (
        alone_s,
        way.gather_params_s + way.reduce_grads_s,
        way.step_s,
        way.static_bytes,
        way.resident_bytes,
        way.transient_bytes,
    )


def crossover(shardings: ShardingModel, one: RematChain, other: RematChain) -> Iterator[RematChain]:
    """The first instances of one, the others of the other, wherever both leave the boundary alike."""
    for cut in range(1, len(one.ways)):
        options = (*one.chain.options[:cut], *other.chain.options[cut:])
        differ = one.ways[cut - 1] is not other.ways[cut - 1]  # else it is the same as before
        if differ and _agree(shardings, options):
            points = (*one.chain.points[:cut], *other.chain.points[cut:])
            chain = Chain(points, options, one.chain.microbatches, one.chain.price)
            yield RematChain(chain, (*one.ways[:cut], *other.ways[cut:]))


def permute_equal_segments(shardings: ShardingModel, mixed: RematChain) -> Iterator[RematChain]:
    """Alike instances that change places: what is gathered early, late, or spread evenly over the chain. The lane that
    gathers is a segment ahead of compute, so gathers that lie together are waited for."""
    groups: dict[object, list[int]] = {}
    for index, options in enumerate(mixed.chain.options):
        groups.setdefault((id(shardings.problem(index)), options), []).append(index)
    for order in (_longest_first, _longest_last, _spread):
        points, ways = list(mixed.chain.points), list(mixed.ways)
        for places in groups.values():
            for place, taken in zip(places, order(mixed, places), strict=True):
                points[place], ways[place] = mixed.chain.points[taken], mixed.ways[taken]
        chain = Chain(tuple(points), mixed.chain.options, mixed.chain.microbatches, mixed.chain.price)
        yield RematChain(chain, tuple(ways))


def _longest_first(mixed: RematChain, places: Sequence[int]) -> list[int]:
    return sorted(places, key=lambda place: -mixed.ways[place].async_comm_s)


def _longest_last(mixed: RematChain, places: Sequence[int]) -> list[int]:
    return _longest_first(mixed, places)[::-1]


def _spread(mixed: RematChain, places: Sequence[int]) -> list[int]:
    """Of every kind one after as many others as there are to each of it."""
    kinds: dict[object, list[int]] = {}
    for place in places:
        way = mixed.ways[place]
        kinds.setdefault((way.overlappable_s, way.resident_bytes, way.backward_s), []).append(place)
    ideal = {place: (rank + 0.5) / len(kind) for kind in kinds.values() for rank, place in enumerate(kind)}
    return sorted(places, key=lambda place: ideal[place])


def _agree(shardings: ShardingModel, options: Sequence[Options]) -> bool:
    """Whether every value and tied weight has the same option wherever it is read."""
    found: dict[str, int] = {}
    for index, here in enumerate(options):
        for name, option in zip(shardings.boundary(index), here, strict=True):
            if found.setdefault(name, option) != option:
                return False
    return True


def _first_users(shardings: ShardingModel) -> dict[str, int]:
    """The segment that makes each boundary value, or reads a tied weight first."""
    found: dict[str, int] = {}
    for index in range(len(shardings.program.segments)):
        for name in shardings.boundary(index):
            found.setdefault(name, index)
    return found


def _before(
    shardings: ShardingModel, index: int, alive: dict[str, int], options: Options, first: dict[str, int]
) -> State | None:
    """What must be alive before the segment runs; None where it does not go with what later ones want."""
    here = dict(zip(shardings.boundary(index), options, strict=True))
    if any(alive.get(name, option) != option for name, option in here.items()):
        return None
    return tuple(sorted((name, option) for name, option in (alive | here).items() if first[name] < index))


def _weighed_s(way: FrontierPoint, microbatches: int, overlap_weight: float) -> float:
    """A lower bound on what it adds to a step."""
    alone_s = way.seconds(microbatches) - way.async_comm_s - way.step_s
    return (alone_s + overlap_weight * way.async_comm_s) / (1 + overlap_weight) + way.step_s


def _extended(
    labels: _Labels, here: Ints, offer: SegmentOffer, target: int, pick: int, seconds: Sequence[float]
) -> Iterator[_Labels]:
    same = np.ones(len(here), dtype=np.int64)
    for number, (way, way_s) in enumerate(zip(offer.ways, seconds, strict=True)):
        static = labels.static[here] + way.static_bytes
        behind = labels.total[here] - labels.static[here]
        total = static + way.resident_bytes + np.maximum(behind, way.transient_bytes)
        yield _Labels(labels.seconds[here] + way_s, static, total, target * same, here, pick * same, number * same)


class _Bounds:
    """What the instances before one take at least, given the bytes that are left to them."""

    def __init__(self, offers: Sequence[Sequence[SegmentOffer]], weighed: Sequence[Sequence[Sequence[float]]]) -> None:
        held = [np.array([way.held_bytes for offer in found for way in offer.ways]) for found in offers]
        seconds = [np.array([one for every in found for one in every]) for found in weighed]
        prices = turning_prices(zip(held, seconds, strict=True))
        known: dict[tuple[bytes, bytes], Floats] = {}
        rows = []
        for bytes_, each_s in zip(held, seconds, strict=True):
            key = (bytes_.tobytes(), each_s.tobytes())
            if key not in known:
                known[key] = (each_s[:, None] + prices[None, :] * bytes_[:, None]).min(axis=0)
            rows.append(known[key])
        self.prices = prices
        self.sums = np.concatenate([np.zeros((1, len(prices))), np.cumsum(rows, axis=0)])
        self.least = np.concatenate([[0], np.cumsum([each.min() for each in held])])

    def before(self, index: int, left: Ints) -> Floats:
        """Infinite where too few are left."""
        sums = self.sums[index]
        # Concave in the price: the highest is where it rises by no more than what is left.
        at = np.searchsorted(-np.diff(sums) / np.diff(self.prices), -left)
        return np.where(left < self.least[index], np.inf, sums[at] - self.prices[at] * left)


def _undominated(labels: _Labels, budget: int) -> Ints:
    """Their places."""
    coarse = isqrt(RESOLUTION)
    wide, narrow = max(1, budget // coarse), max(1, budget // RESOLUTION)
    group = labels.state * (coarse + 2) + np.minimum(labels.static // wide, coarse + 1)
    order = np.lexsort((labels.seconds, labels.total // narrow, group))
    keys = group[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    kept = []
    for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        seconds = labels.seconds[order[start:end]]
        least = np.minimum.accumulate(np.concatenate(([np.inf], seconds[:-1])))
        kept.append(order[start:end][seconds < least])
    return np.concatenate(kept) if kept else order[:0]
