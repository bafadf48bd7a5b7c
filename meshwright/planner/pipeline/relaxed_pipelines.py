"""All pipelines in one number of micro-batches, with every segment at its least figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

    Bounds are raised only where they leave a pipeline open, since conversions between layouts and priced memory take
    long: first with neither, then with conversions on submeshes whose size divides the devices, then with memory. Other
    sizes come last, where pipelines of the first are all too slow.

    Where the last micro-batch is smaller, its gradient is on its way back for less time than a full one. The bounds are
    those of as many micro-batches of its size as the batch has: each full one takes as long as several of them.

    models: shardings by class of submeshes, in this number of micro-batches or in fewer.
    share: seconds of a micro-batch over those of the models.
    in_memory: saved tensors are priced.
    """

    problem: StageProblem
    models: Mapping[int, Sequence[ShardingModel]]
    batch: int
    microbatches: int
    in_memory: bool
    share: float = 1.0
    _known: dict[object, Floats] = field(default_factory=dict)

    def any_within(self, limit_s: float) -> bool:
        """Whether the bounds leave any pipeline that takes no longer."""
        if not self._rough.any_within(limit_s) or not self._even.any_within(limit_s):
            return False
        if self.in_memory and not self._even_in_memory.any_within(limit_s):
            return False
        return len(self._dividing) == len(self.models) or (
            (bool(self._dividing) and self._of_dividing.any_within(limit_s)) or self._all.any_within(limit_s)
        )

    @property
    def least_s(self) -> float:
        """Lower bound on the step of each, quickly found."""
        return self._rough.least_s

    def in_more(self, microbatches: int) -> RelaxedPipelines:
        """The same in a multiple of the micro-batches, each op taking as long in pieces as whole: no more than it
        takes."""
        problem = replace(self.problem, microbatches=(microbatches,))
        share = self.share * self.microbatches / microbatches
        return replace(self, problem=problem, microbatches=microbatches, in_memory=False, share=share)

    @cached_property
    def _dividing(self) -> frozenset[int]:
        """Classes whose size divides the devices."""
        total = sum(self.problem.devices)
        return frozenset(place for place in self.models if total % self.problem.meshes[place].ranks == 0)

    @cached_property
    def _rough(self) -> _Bounds:
        return self._bounds(tuple(self.models), frozenset(), False)

    @cached_property
    def _even(self) -> _Bounds:
        return self._bounds(tuple(self.models), self._dividing, False)

    @cached_property
    def _even_in_memory(self) -> _Bounds:
        return self._bounds(tuple(self.models), self._dividing, True)

    @cached_property
    def _of_dividing(self) -> _Bounds:
        """No bound on all: of pipelines with submeshes of these classes alone."""
        return self._bounds(tuple(sorted(self._dividing)), self._dividing, self.in_memory)

    @cached_property
    def _all(self) -> _Bounds:
        return self._bounds(tuple(self.models), frozenset(self.models), self.in_memory)

    def _bounds(self, places: tuple[int, ...], converting: frozenset[int], in_memory: bool) -> _Bounds:
        """places: classes of submeshes. converting: of these, where conversions inside a segment count."""
        problem, micro = self.problem, self._of_last_size
        ranges = _Ranges.of(np.array(problem.all_cuts), places)
        sums = ranges.sums(lambda place: self._least(place, place in converting, LeastFigures.figures, "figures"))
        sums[:, (WORK, CROSS)] *= self.share
        memory = None
        if in_memory:
            prices, flights = self._prices
            priced = ranges.sums(
                lambda place: self._least(place, place in converting, lambda one: one.priced(prices, flights), "priced")
            )
            memory = PricedMemory(prices, flights, priced, sums[:, STEP] - sums[:, UPDATE], sums[:, UPDATE])
        rows = self._options(sums, ranges)
        shapes = interleavings(problem) if "interleaved" in problem.schedules else ()
        interleaved = tuple(Interleaved(problem, rows, micro, *shape) for shape in shapes)
        # A searched schedule may be that of any other: its bound holds for all.
        names = [name for name in problem.later or problem.schedules if name != "interleaved"]
        return _Bounds(tuple(Bound(problem, rows, one, micro, memory=memory) for one in names), interleaved, memory)

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

    def _least(self, place: int, conversions: bool, figures: Callable[[LeastFigures], Floats], name: str) -> Floats:
        """The least figures of every segment on a class of submeshes."""
        key = name, place, conversions
        if key not in self._known:
            every = [figures(LeastFigures(model, conversions)) for model in self.models[place]]
            self._known[key] = np.minimum.reduce(every)
        return self._known[key]


@dataclass
class _Bounds:
    """interleaved: pipelines of one shape each. others: those of other schedules."""

    others: tuple[Bound, ...]
    interleaved: tuple[Interleaved, ...]
    memory: PricedMemory | None

    @property
    def least_s(self) -> float:
        """Lower bound on the step of each."""
        others_s = [one.least_s * (1 - CLOSE) for one in self.others]
        return min([*others_s, *(found_s for found_s, _, _ in self._heap[:1])], default=inf)

    def any_within(self, limit_s: float) -> bool:
        others = any(one.least_s * (1 - CLOSE) < limit_s and one.possible(limit_s) for one in self.others)
        return others or self._any_interleaved_within(limit_s)

    def _any_interleaved_within(self, limit_s: float) -> bool:
        """The bound of a shape is raised only where it is the least so far."""
        while self._heap and self._heap[0][0] < limit_s:
            found_s, number, raised = self._heap[0]
            if raised:
                return True
            one = self.interleaved[number]
            priced_s = one.least_in_memory_s(self.memory) if self.memory else 0.0
            heapreplace(self._heap, (max(found_s, priced_s, one.fullest_s(self.memory)), number, True))
        return False

    @cached_property
    def _heap(self) -> list[tuple[float, int, bool]]:
        """(bound, place of the shape, whether it was raised)."""
        found = [(one.least_s(), number, False) for number, one in enumerate(self.interleaved) if len(one.own)]
        heapify(found)
        return found
