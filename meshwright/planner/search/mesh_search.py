"""The fastest plan of one node: shardings on one mesh with one micro-batch count, rematerialised by segment.

Shardings are shortest paths at several prices per byte and overlap weights. The highest price comes first, since its
sharding leaves most memory. Each sharding is traced, and what its segments do is offered to all equal segments, which
may mix shardings (`remat_chain.combine_offers`). A step is the longer of compute and of the communication that overlaps
it, but combinations are searched at fixed weights between the two. So two of them may cross over: the first segments of
one, the last segments of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.lagrangian import chain_at, chain_under_cap, memory_free_bound_s
from meshwright.planner.chain.remat_chain import (
    RematChain,
    SegmentOffer,
    combine_offers,
    crossover,
    pareto_offers,
    permute_equal_segments,
)
from meshwright.planner.effort import EFFORTS, OVERLAP_WEIGHTS, PRICES, RESOLUTION, RETRIES
from meshwright.planner.memory.nested_sharded import refine_nested
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.refine import (
    FittedRemat,
    Options,
    fit_by_clock,
    fit_given,
    fit_ways,
    least_peak,
    pending_bytes,
    refine,
)
from meshwright.planner.sharding.model import ShardingModel
from meshwright.remat.inner import CHUNKS

Assemble = Callable[[Chain, ShardingModel], Plan]
Offered = Callable[[Plan, RematOptions], Options]

FEWER = CHUNKS[:1]
"""Chunks of backward while shardings are compared; the best of them may have more."""


@dataclass(frozen=True, slots=True)
class _TracedSharding:
    """A sharding with its traced pairs and the rematerialisation points offered to the search."""

    chain: Chain
    ways: RematOptions
    options: Options


@dataclass(slots=True)
class MeshSearch:
    """The search of one node.

    offered: selects the rematerialisation points of a sharding that may be taken; all unless given, offload included.
    method: of activation checkpointing.
    most_traced: limit of shardings that are traced, and of combinations whose equal segments are permuted.
    """

    shardings: ShardingModel
    program: Program
    budget_bytes: int
    assemble: Assemble
    incumbent_s: float
    offered: Offered | None = None
    method: str = "auto"
    traced: list[_TracedSharding] = field(default_factory=list)
    best: Plan | None = None
    fits: bool = False
    most_traced: int = EFFORTS["default"].shardings

    def fastest(self, price: float) -> Plan | None:
        """The fastest plan found, None where none beats the incumbent.

        price: seconds per byte at which the node's bound is proven.
        """
        chains = self._chains(price)
        able = [one for one in chains if one.static_bytes <= self.budget_bytes and not self._is_traced(one)]
        misfits = max(0, len(self.traced) - 1)
        for chain in sorted(able, key=lambda one: one.seconds)[: self.most_traced]:
            if chain.seconds >= self.incumbent_s or self.trace(chain) < inf:
                break
            misfits += 1
        while chains and len(self.traced) < self.most_traced + misfits:
            most = max(range(len(chains)), key=lambda place: self._new(chains[place]))
            chain = chains.pop(most)
            if not self._new(chain):
                break
            self.trace(chain)
        weights = OVERLAP_WEIGHTS[1:] if len(self.traced) > 1 else ()
        found = [mixed for weight in weights if (mixed := self._mixture(price, weight))]
        for one, other in [*pairwise(found), *pairwise(reversed(found))]:
            found += crossover(self.shardings, one, other)
        fitting = [mixed for mixed in found if mixed.peak_bytes <= self.budget_bytes]
        quickest = sorted(fitting, key=lambda mixed: mixed.least_s)[: self.most_traced]
        quickest += sorted(fitting, key=lambda mixed: mixed.seconds)[: self.most_traced]
        quickest += [made for mixed in quickest for made in permute_equal_segments(self.shardings, mixed)]
        for mixed in sorted(quickest, key=lambda mixed: mixed.seconds):
            if mixed.peak_bytes <= self.budget_bytes and mixed.seconds < self.incumbent_s:
                self.trace(mixed.chain, mixed)
                break
        return self.best

    def probe(self, price: float, most_s: float) -> float:
        """Seconds of a step of one sharding: the most promising, else one that holds less; infinite if none fits.

        Chunks may make room for transients: shardings are tried as they are before those whose transients fit.
        most_s: a sharding that takes longer with everything kept is not traced, and no other is tried.
        """
        for number, chain in enumerate(self._to_probe(price)):
            if chain.static_bytes > self.budget_bytes or self._is_traced(chain):
                continue  # it does not fit whatever it recomputes, or is known not to
            if chain.seconds > most_s:
                if not number:
                    return chain.seconds
                continue
            step_s = self.trace(chain, slow=True)
            if step_s < inf:
                return step_s
        return self._squeezed_s()

    def _squeezed_s(self) -> float:
        """Seconds of a step where no sharding fits as yet: the one that needs least is put under a lower cap on
        transients, by what it lacks, as long as that helps."""
        needed = [(least_peak(one.ways, one.chain.microbatches), one.chain) for one in self.traced]
        if not needed:
            return inf
        peak, chain = min(needed, key=lambda one: one[0])
        cap_bytes = chain.transient_bytes
        for _ in range(RETRIES):
            cap_bytes = min(cap_bytes, chain.transient_bytes) - (peak - self.budget_bytes)
            squeezed = chain_under_cap(self._middle.capped(cap_bytes), chain.price) if cap_bytes > 0 else None
            if squeezed is None or squeezed.static_bytes > self.budget_bytes or self._is_traced(squeezed):
                break
            step_s = self.trace(squeezed, slow=True)
            if step_s < inf:
                return step_s
            before, chain = peak, squeezed
            peak = least_peak(self.traced[-1].ways, chain.microbatches)
            if peak >= before:
                break
        return inf

    def _to_probe(self, price: float) -> Iterator[Chain]:
        """The sharding of a price per byte and one that holds less, then those under a cap on transients, then the one
        that holds least."""
        middle, scale = self._middle, memory_free_bound_s(self.shardings) / self.budget_bytes
        yield (near := chain_at(middle, (price or scale) * middle.scale))
        yield (less := chain_at(middle, max(price, scale) * PRICES[1] * middle.scale))
        least = chain_at(middle, PRICES[-1] * scale * middle.scale)
        for chain in (near, less, least):
            yield self._lean(middle, chain)
        yield least

    @property
    def _middle(self) -> ShardingModel:
        """The shardings at the overlap weight in the middle."""
        bases = weighed(self.shardings)
        return bases[len(bases) // 2]

    def trace(self, chain: Chain, mixed: RematChain | None = None, slow: bool = False) -> float:
        """Rematerialises one sharding and takes it if it beats the incumbent.

        slow: also a sharding that is slower than the incumbent with everything kept.
        Returns the seconds of its step, infinite where it does not fit."""
        plan = self.assemble(chain, self.shardings)
        ways = RematOptions.of(plan, self.program, FEWER)
        options = self.offered(plan, ways) if self.offered else None
        self.traced.append(_TracedSharding(chain, ways, ways.curves.options if options is None else options))
        if chain.seconds >= self.incumbent_s and not slow:
            return inf  # of use in mixtures alone: recomputing only takes longer
        points = self.traced[-1].options

        def within(room_bytes: int) -> FittedRemat | None:
            fitted = [fit_ways(plan, ways, room_bytes, options)]
            if mixed is not None:
                fitted.append(fit_given(plan, ways, room_bytes, points, mixed.ways))
            return min((one for one in fitted if one), key=lambda one: one.predicted.step_s, default=None)

        found, made = within(self.budget_bytes), None
        if found is None:
            return inf
        step_s = found.predicted.step_s
        if step_s < self.incumbent_s:
            made = fit_by_clock(plan, self.program, self.budget_bytes, found, within)
            if made is None:
                return inf
            step_s = made.predicted.step_s
        self.fits |= chain.seconds < self.incumbent_s
        if made is not None and step_s < self.incumbent_s:
            self.best, self.incumbent_s = made, step_s
        return step_s

    def otherwise(self) -> Plan | None:
        """Where nothing fits: backward in more chunks, or nested orders that recompute segment inputs."""
        promising = [one for one in self.traced if one.chain.seconds < self.incumbent_s]
        least = min(promising, key=lambda one: sum(point.held_bytes for point in one.ways.points), default=None)
        if self.fits or least is None or self.method == "keep":
            return None
        plan = self.assemble(least.chain, self.shardings)
        found = refine(plan, self.program, self.budget_bytes, method=self.method)
        if found or self.method == "flat":
            return found
        return refine_nested(plan, self.program, least.ways, self.budget_bytes)

    def _chains(self, price: float) -> list[Chain]:
        """Distinct shardings to trace, those that hold least first."""
        bases = weighed(self.shardings)
        middle = bases[len(bases) // 2]
        scale = memory_free_bound_s(self.shardings) / self.budget_bytes
        asked = [(middle, PRICES[-1] * scale), (middle, price), (middle, 0.0)]
        asked += [(base, factor * scale) for factor in PRICES for base in bases]
        found: list[Chain] = []
        for base, asked_price in asked:
            chain = chain_at(base, asked_price * base.scale)
            for one in (self._lean(base, chain), chain):
                if not any(is_same(one, other) for other in found):
                    found.append(one)
        return found

    def _lean(self, base: ShardingModel, chain: Chain) -> Chain:
        """The chain, or one under a cap on transients where its weights leave too little memory for them."""
        cap_bytes = self.budget_bytes - chain.static_bytes
        if cap_bytes <= 0 or chain.transient_bytes <= cap_bytes:
            return chain
        return chain_under_cap(base.capped(cap_bytes), chain.price) or chain

    def _is_traced(self, chain: Chain) -> bool:
        return any(is_same(chain, one.chain) for one in self.traced)

    def _new(self, chain: Chain) -> int:
        """The number of its segments that no traced sharding has alike."""
        every = range(len(chain.points))
        return sum(all(not _alike(chain, one.chain, index) for one in self.traced) for index in every)

    def _mixture(self, price: float, weight: float) -> RematChain | None:
        """The best combination of offers; tried with a smaller budget where pending gradients push it over."""
        offers = _offers(self.traced)
        room = self.budget_bytes - min(pending_bytes(one.ways, one.chain.microbatches) for one in self.traced)
        for _ in range(RETRIES):
            found = combine_offers(self.shardings, offers, room, self.incumbent_s, price, weight)
            if found is None:
                return None
            every = [found, *permute_equal_segments(self.shardings, found)]
            fitting = [mixed for mixed in every if mixed.peak_bytes <= self.budget_bytes]
            if fitting:
                return min(fitting, key=lambda mixed: mixed.seconds)
            over = min(mixed.peak_bytes for mixed in every) - self.budget_bytes
            room -= max(over, self.budget_bytes // RESOLUTION)
        return None


def weighed(shardings: ShardingModel) -> list[ShardingModel]:
    """Copies at each overlap weight: overlapping communication is hidden at the first, exposed at the last."""
    return [shardings.weighed(weight) for weight in OVERLAP_WEIGHTS] if shardings.mesh.any_overlap else [shardings]


def is_same(one: Chain, other: Chain) -> bool:
    """Whether two chains shard alike."""
    return all(_alike(one, other, index) for index in range(len(one.points)))


def _alike(one: Chain, other: Chain, index: int) -> bool:
    a, b = one.points[index], other.points[index]
    return a is b or (a.point.choice == b.point.choice and a.parameters == b.parameters)


def _offers(traced: Sequence[_TracedSharding]) -> list[list[SegmentOffer]]:
    """The Pareto-optimal offers of every segment: each traced sharding with each of its rematerialisation points."""
    offers: list[list[SegmentOffer]] = []
    known: dict[object, list[SegmentOffer]] = {}
    for index in range(len(traced[0].chain.points)):
        firsts = [one for number, one in enumerate(traced) if _is_first(traced, number, index)]
        key = tuple((one.chain.options[index], id(one.chain.points[index]), id(one.options[index])) for one in firsts)
        if key not in known:
            here = [
                SegmentOffer(
                    one.chain.options[index],
                    one.chain.points[index],
                    tuple(one.ways.point(index, kept) for kept in one.options[index]),
                )
                for one in firsts
            ]
            known[key] = pareto_offers(here)
        offers.append(known[key])
    return offers


def _is_first(traced: Sequence[_TracedSharding], number: int, index: int) -> bool:
    return not any(_alike(traced[number].chain, other.chain, index) for other in traced[:number])
