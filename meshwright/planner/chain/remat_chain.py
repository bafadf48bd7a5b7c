"""Chains that also say what every segment keeps: the fastest combination of several shardings, and its neighbours.

The objective weighs seconds as a ShardingModel does: communication that overlaps compute counts `overlap_weight` times,
and the sum is divided by 1 + `overlap_weight`. That is a lower bound on the step. How near the step comes to it depends
on the order of equal segments (`permute_equal_segments`) and on the balance of compute and communication (`crossover`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.plan import FrontierPoint
from meshwright.planner.chain.chains import Chain, boundary
from meshwright.planner.chain.label_dp import LagrangianBound, State, Ways, label_dp
from meshwright.planner.effort import RESOLUTION
from meshwright.planner.sharding.model import Options, Point, ShardingModel
from meshwright.predict.fast import quick_prediction
from meshwright.price.overlap import overlapped


@dataclass(frozen=True, slots=True)
class SegmentOffer:
    """A sharding of one segment.

    options: of its boundary.
    sharding: with everything kept.
    ways: one point for each set of saved values.
    """

    options: Options
    sharding: Point
    ways: tuple[FrontierPoint, ...]


@dataclass(frozen=True)
class RematChain:
    """A chain with the rematerialisation of every segment. ways: the chain's points with it."""

    chain: Chain
    ways: tuple[FrontierPoint, ...]

    @cached_property
    def seconds(self) -> float:
        return overlapped(self.ways, self.chain.microbatches)

    @cached_property
    def least_s(self) -> float:
        """Lower bound on the step: overlap is perfect."""
        overlapped_s, after_s = sum(way.async_comm_s for way in self.ways), sum(way.step_s for way in self.ways)
        alone_s = sum(way.seconds(self.chain.microbatches) for way in self.ways) - overlapped_s - after_s
        return max(alone_s, overlapped_s) + after_s

    @cached_property
    def peak_bytes(self) -> int:
        return quick_prediction(self.ways, self.chain.microbatches, exact_peak=True).peak_bytes


def combine_offers(
    shardings: ShardingModel,
    offers: Sequence[Sequence[SegmentOffer]],
    budget_bytes: int,
    incumbent_s: float,
    price: float,
    overlap_weight: float = 1.0,
) -> RematChain | None:
    """The chain with the fewest seconds, as `_weighed_s` counts them, that fits and runs each segment as it is offered;
    None where none has fewer than the incumbent.

    price: for the Chain, per byte.
    overlap_weight: of communication that overlaps compute.
    """
    micro = shardings.setting.microbatches
    if not any(way.async_comm_s for here in offers for offer in here for way in offer.ways):
        overlap_weight = 0.0
    rows = [
        [_ways(offer, boundary(shardings, index, offer.options), micro, overlap_weight) for offer in here]
        for index, here in enumerate(offers)
    ]
    solution = label_dp(rows, LagrangianBound(rows, budget_bytes), incumbent_s, RESOLUTION, RESOLUTION)
    if solution is None:
        return None
    taken = [here[offer] for here, (offer, _) in zip(offers, solution.picks, strict=True)]
    ways = tuple(offer.ways[way] for offer, (_, way) in zip(taken, solution.picks, strict=True))
    chain = Chain(tuple(one.sharding for one in taken), tuple(one.options for one in taken), micro, price)
    return RematChain(chain, ways)


def _ways(offer: SegmentOffer, state: State, microbatches: int, overlap_weight: float) -> Ways:
    seconds = np.array([_weighed_s(way, microbatches, overlap_weight) for way in offer.ways])
    figures = [(way.static_bytes, way.resident_bytes, way.transient_bytes) for way in offer.ways]
    static, resident, transient = np.array(figures, dtype=np.int64).T
    return Ways(seconds, static, resident, transient, state)


def _weighed_s(way: FrontierPoint, microbatches: int, overlap_weight: float) -> float:
    """A lower bound on the seconds that it adds to a step."""
    alone_s = way.seconds(microbatches) - way.async_comm_s - way.step_s
    return (alone_s + overlap_weight * way.async_comm_s) / (1 + overlap_weight) + way.step_s


def pareto_offers(offers: Sequence[SegmentOffer]) -> list[SegmentOffer]:
    """The Pareto frontier of ways between the same boundary options, in bytes and in each kind of seconds."""
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
    """The first segments of one with the last segments of the other, wherever the boundary options agree."""
    for cut in range(1, len(one.ways)):
        options = (*one.chain.options[:cut], *other.chain.options[cut:])
        differ = one.ways[cut - 1] is not other.ways[cut - 1]  # else it is the same as before
        if differ and _agree(shardings, options):
            points = (*one.chain.points[:cut], *other.chain.points[cut:])
            chain = Chain(points, options, one.chain.microbatches, one.chain.price)
            yield RematChain(chain, (*one.ways[:cut], *other.ways[cut:]))


def permute_equal_segments(shardings: ShardingModel, mixed: RematChain) -> Iterator[RematChain]:
    """Equal segments permuted: longest communication first, last, or spread evenly over the chain.

    Gathers are prefetched one segment ahead, so compute waits for gathers that lie together.
    """
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
    """Each kind spread evenly."""
    kinds: dict[object, list[int]] = {}
    for place in places:
        way = mixed.ways[place]
        kinds.setdefault((way.overlappable_s, way.resident_bytes, way.backward_s), []).append(place)
    ideal = {place: (rank + 0.5) / len(kind) for kind in kinds.values() for rank, place in enumerate(kind)}
    return sorted(places, key=lambda place: ideal[place])


def _agree(shardings: ShardingModel, options: Sequence[Options]) -> bool:
    """Whether each value and tied weight has one option in all segments."""
    found: dict[str, int] = {}
    for index, here in enumerate(options):
        for name, option in zip(shardings.boundary(index), here, strict=True):
            if found.setdefault(name, option) != option:
                return False
    return True
