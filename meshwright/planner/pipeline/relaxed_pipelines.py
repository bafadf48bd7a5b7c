"""All pipelines in one number of micro-batches, with every segment at its least figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heapreplace
from math import inf

import numpy as np

from meshwright.cutting import cut_batch
from meshwright.planner.effort import CLOSE, RETRIES
from meshwright.planner.pipeline.least_figures import (
    CROSS,
    HOST,
    STATIC,
    STEP,
    UPDATE,
    WORK,
    LeastFigures,
    seconds_per_byte,
)
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.stages.bound import Bound
from meshwright.planner.stages.interleaved import Interleaved, interleavings
from meshwright.planner.stages.options import Floats, Ints, StageOptions
from meshwright.planner.stages.priced_memory import PricedMemory
from meshwright.planner.stages.problem import StageProblem


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Rows of the stage programme: segments between two cuts on a class of submeshes."""

    cuts: Ints
    begin: Ints
    end: Ints
    mesh: Ints

    @classmethod
    def of(cls, cuts: Ints, places: Sequence[int]) -> _Ranges:
        """All ranges but the whole program, on each class."""
        first, last = np.triu_indices(len(cuts), 1)
        several = last - first < len(cuts) - 1
        begin, end = (np.tile(one[several], len(places)) for one in (first, last))
        mesh = np.repeat(places, several.sum())
        order = np.lexsort((end, mesh, begin))
        return cls(cuts, begin[order], end[order], mesh[order])

    def sums(self, figures: Callable[[int], Floats]) -> Floats:
        """Of each row's segments, from those of every segment by class."""
        found: Floats | None = None
        for place in sorted(set(self.mesh.tolist())):
            one = figures(place)
            if found is None:
                found = np.empty((len(self.mesh), *one.shape[1:]))
            before = np.concatenate([np.zeros((1, *one.shape[1:])), np.cumsum(one, axis=0)])[self.cuts]
            own = self.mesh == place
            found[own] = before[self.end[own]] - before[self.begin[own]]
        assert found is not None
        return found


@dataclass
class RelaxedPipelines:
    """All pipelines in a number of micro-batches, at the least figures of their segments.

    Conversions between layouts and priced memory take long to count, so they are counted on few classes of submeshes:
    first on none, then on those of a pipeline that the bounds leave open, until the classes of such a pipeline are
    among these (counterexample-guided refinement). Memory is priced where pipelines are open without it. Submeshes
    whose size divides the devices come first.

    Where the last micro-batch is smaller, its gradient is on its way back for less time than a full one. The bounds are
    those of as many micro-batches of its size as the batch has: each full one takes as long as several of them.

    models: shardings by class of submeshes, in this number of micro-batches.
    in_memory: saved tensors are priced.
    fewer: in a divisor of the micro-batches, where no op is faster in pieces: its figures stand for those of classes
        that are not refined.
    """

    problem: StageProblem
    models: Mapping[int, Sequence[ShardingModel]]
    batch: int
    microbatches: int
    in_memory: bool
    fewer: RelaxedPipelines | None = None
    _known: dict[object, Floats] = field(default_factory=dict)
    _refined: dict[bool, frozenset[int]] = field(default_factory=lambda: dict.fromkeys((False, True), frozenset()))
    _made: dict[object, tuple[object, _Bounds]] = field(default_factory=dict)
    _shapes: dict[object, tuple[float, object]] = field(default_factory=dict)

    def any_within(self, limit_s: float) -> bool:
        """Whether the bounds leave any pipeline that takes no longer."""
        return self._any_within(limit_s, False) and (not self.in_memory or self._any_within(limit_s, True))

    def _any_within(self, limit_s: float, in_memory: bool) -> bool:
        """in_memory: of the refined classes, saved tensors are priced with conversions."""
        every = frozenset(self.models)
        while True:
            refined = self._refined[in_memory]
            if refined and self._bounds(refined, in_memory).any_within(limit_s):
                return True
            found = self._bounds(self._dividing, in_memory).classes_within(limit_s) if self._dividing else frozenset()
            if not found and self._dividing < every:
                found = self._bounds(every, in_memory).classes_within(limit_s)
            if not found:
                return False
            new = found - refined or self._dividing - refined or every - refined
            if not new:
                return True
            self._refined[in_memory] |= new

    def refine(self, places: frozenset[int]) -> None:
        """Counts all there is on these classes."""
        self._refined = dict.fromkeys((False, True), places)

    @property
    def least_s(self) -> float:
        """Lower bound on the step of each, quickly found."""
        return self._bounds(frozenset(self.models), False).least_s

    @cached_property
    def _dividing(self) -> frozenset[int]:
        """Classes whose size divides the devices."""
        total = sum(self.problem.devices)
        return frozenset(place for place in self.models if total % self.problem.meshes[place].ranks == 0)

    def _bounds(self, places: frozenset[int], in_memory: bool) -> _Bounds:
        """Of pipelines with submeshes of these classes alone; on all they are bounds. They are made again where more
        classes are refined."""
        priced = self._refined[True] if in_memory else None
        state, key = (self._converting, priced), (places, in_memory)
        if key not in self._made or self._made[key][0] != state:
            self._made[key] = state, self._new_bounds(tuple(sorted(places)), priced)
        return self._made[key][1]

    def _new_bounds(self, places: tuple[int, ...], priced: frozenset[int] | None) -> _Bounds:
        """places: classes of submeshes. priced: of these, where conversions count in priced memory; None where memory
        is free."""
        problem, micro = self.problem, self._of_last_size
        ranges = _Ranges.of(np.array(problem.all_cuts), places)
        sums = ranges.sums(self._figures)
        memory = None
        if priced is not None:
            prices, flights = self._prices
            costs = ranges.sums(lambda place: self._priced(place, place in priced))
            memory = PricedMemory(prices, flights, costs, sums[:, STEP] - sums[:, UPDATE], sums[:, UPDATE])
        rows = self._options(sums, ranges)
        shapes = [one for one in interleavings(problem) if one[0] in places and "interleaved" in problem.schedules]
        interleaved = tuple(
            _Shape(
                shape,
                (shape[0] in self._converting, None if priced is None else shape[0] in priced),
                Interleaved(problem, rows, micro, *shape),
            )
            for shape in shapes
        )
        # A searched schedule may be that of any other: its bound holds for all.
        names = [name for name in problem.later or problem.schedules if name != "interleaved"]
        others = tuple(Bound(problem, rows, one, micro, memory=memory) for one in names)
        return _Bounds(others, interleaved, memory, self._shapes)

    @property
    def _of_last_size(self) -> int:
        return self.batch // cut_batch(self.batch, self.microbatches)[1]

    def _options(self, sums: Floats, ranges: _Ranges) -> StageOptions:
        """Rows as the stage programme takes them; what `sums` do not have is free. Nothing is handed over: all classes
        have one port."""
        problem, mesh, micro = self.problem, ranges.mesh, self.microbatches
        each, last = cut_batch(self.batch, micro)
        work_s, cross_s, nothing = last / each * sums[:, WORK], last / each * sums[:, CROSS], np.zeros(len(mesh))
        step_s = sums[:, STEP] * self.batch / (micro * each)
        more_s = np.maximum(micro * sums[:, HOST], step_s) - self._of_last_size * work_s
        port, limits = np.zeros_like(mesh), np.array([float(one.memory_bytes) for one in problem.meshes])
        return StageOptions(
            points=(),
            begin=ranges.begin,
            end=ranges.end,
            mesh=mesh,
            enter=port,
            leave=port,
            group=np.arange(len(mesh)),
            forward_s=cross_s,
            input_s=nothing,
            weight_s=work_s - cross_s,
            fixed_s=np.maximum(0.0, more_s),
            static_bytes=sums[:, STATIC],
            held_bytes=sums[:, STATIC],
            resident_bytes=nothing,
            restored_bytes=nothing,
            limit_bytes=limits[mesh],
            enters=((0, None),),
            crossing_s=np.zeros((len(problem.all_cuts), 1, 1)),
        )

    @cached_property
    def _prices(self) -> tuple[Floats, Floats]:
        """(prices per byte, numbers in flight)."""
        usual = self.microbatches * seconds_per_byte(next(iter(self.models.values()))[0])
        prices = np.array([usual / 2**halvings for halvings in range(RETRIES, 0, -1)])
        most = min(self.microbatches, self.problem.stage_limit)
        return prices, np.array([2.0**power for power in range(most.bit_length()) if 2**power < most] + [float(most)])

    @property
    def _converting(self) -> frozenset[int]:
        """Where conversions inside a segment count."""
        return self._refined[False] | self._refined[True]

    def _stand_in(self, place: int) -> RelaxedPipelines:
        """In whose number of micro-batches the figures of a class are found."""
        if self.fewer is None or place in self._converting or place not in self.fewer.models:
            return self
        return self.fewer._stand_in(place)

    def _figures(self, place: int) -> Floats:
        """The least figures of every segment on a class of submeshes."""
        one = self._stand_in(place)
        found = one._least(place, place in one._converting, LeastFigures.figures, "figures").copy()
        found[:, (WORK, CROSS)] *= one.microbatches / self.microbatches
        return found

    def _priced(self, place: int, conversions: bool) -> Floats:
        """W of every segment on a class. As many samples are in flight in fewer micro-batches."""
        one, (prices, flights) = self._stand_in(place), self._prices
        flights = flights * (one.microbatches / self.microbatches)
        key = "priced", self.microbatches
        return one._least(place, conversions, lambda least: least.priced(prices, flights), key)

    def _least(self, place: int, conversions: bool, figures: Callable[[LeastFigures], Floats], name: object) -> Floats:
        key = name, place, conversions
        if key not in self._known:
            every = [figures(LeastFigures(model, conversions)) for model in self.models[place]]
            self._known[key] = np.minimum.reduce(every)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Shape:
    """Interleaved pipelines of one shape. refined: what of their class is counted."""

    key: tuple[int, int, int]
    refined: tuple[bool, bool | None]
    pipelines: Interleaved

    def bound_s(self, memory: PricedMemory | None) -> float:
        priced_s = self.pipelines.least_in_memory_s(memory) if memory else 0.0
        return max(self.pipelines.least_s(), priced_s, self.pipelines.fullest_s(memory))


@dataclass
class _Bounds:
    """interleaved: by shape. others: pipelines of other schedules.
    known: the bound of each shape as far as it is known, and what was counted for it.
    """

    others: tuple[Bound, ...]
    interleaved: tuple[_Shape, ...]
    memory: PricedMemory | None
    known: dict[object, tuple[float, object]]

    @property
    def least_s(self) -> float:
        """Lower bound on the step of each."""
        others_s = [one.least_s * (1 - CLOSE) for one in self.others]
        return min([*others_s, *(found_s for found_s, _, _ in self._heap[:1])], default=inf)

    def any_within(self, limit_s: float) -> bool:
        return any(one.possible(limit_s) for one in self._open(limit_s)) or bool(self._interleaved_within(limit_s))

    def classes_within(self, limit_s: float) -> frozenset[int]:
        """The classes of submeshes of a pipeline that takes no longer; none where there is no such pipeline."""
        found = (one.classes_within(limit_s) for one in self._open(limit_s))
        return next(filter(None, found), None) or self._interleaved_within(limit_s)

    def _open(self, limit_s: float) -> Iterator[Bound]:
        return (one for one in self.others if one.least_s * (1 - CLOSE) < limit_s)

    def _interleaved_within(self, limit_s: float) -> frozenset[int]:
        """The class of a shape. Its bound is raised only where it is the least so far."""
        while self._heap and self._heap[0][0] < limit_s:
            found_s, number, raised = self._heap[0]
            one = self.interleaved[number]
            if raised:
                return frozenset({one.pipelines.mesh})
            found_s = max(found_s, one.bound_s(self.memory))
            self.known[one.key] = found_s, one.refined
            heapreplace(self._heap, (found_s, number, True))
        return frozenset()

    @cached_property
    def _heap(self) -> list[tuple[float, int, bool]]:
        """(bound, place of the shape, whether it was raised)."""
        found = []
        for number, one in enumerate(self.interleaved):
            found_s, refined = self.known.get(one.key) or (one.pipelines.least_s(), None)
            found.append((found_s, number, refined == one.refined))
        heapify(found)
        return found
