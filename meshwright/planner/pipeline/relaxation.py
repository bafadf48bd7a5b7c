"""A lower bound on every pipeline in a number of micro-batches: a relaxation of sharding and messages.

Each segment takes the sharding and rematerialisation that are best for it alone (`least_figures`), whatever its
neighbours take, and hides all it can. Nothing is handed over between segments. The stage programme over these figures
has all cuts, submeshes and schedules. So its bound covers pipelines of any shardings and recomputation, searched or
not. Memory is priced (`planner.stages.priced_memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from meshwright.capture.program import Program
from meshwright.cutting import cut_batch
from meshwright.errors import PlanError
from meshwright.planner.effort import CLOSE, MOST_UNITS, NEAR, RETRIES
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
from meshwright.planner.pipeline.meshes import StageMesh
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.stages.bound import Bound
from meshwright.planner.stages.interleaved import Interleaved, interleavings
from meshwright.planner.stages.options import Floats, Ints, StageOptions
from meshwright.planner.stages.priced_memory import PricedMemory
from meshwright.planner.stages.problem import MeshClass, StageProblem


@dataclass
class PipelineRelaxation:
    """meshes: all submeshes that stages may have.
    models: shardings on the submesh at a place, in a number of micro-batches.
    problem: the stage programme of `stage_classes(meshes)`; its points are replaced.
    counts: numbers of micro-batches of the search, ascending.
    in_memory: activations take memory; else the training state alone does, which takes less time to bound.
    """

    program: Program
    meshes: Sequence[StageMesh]
    models: Callable[[int, int], ShardingModel]
    problem: StageProblem
    counts: Sequence[int]
    in_memory: bool = True
    _pipelines: dict[int, RelaxedPipelines | None] = field(default_factory=dict)
    _known: dict[int, tuple[float, float]] = field(default_factory=dict)

    def bound_s(self, microbatches: int, enough_s: float) -> float:
        """Lower bound on the step of every pipeline in so many micro-batches.

        enough_s: seconds above which the bound is not raised.
        """
        if self._is_large:
            return self._device_seconds
        low_s, high_s = self._known.get(microbatches, (0.0, inf))
        if microbatches not in self._pipelines:
            self._pipelines[microbatches] = self._relaxed(microbatches)
        pipelines = self._pipelines[microbatches]
        if low_s >= enough_s or pipelines is None:
            return low_s if pipelines else inf
        each, last = cut_batch(self.program.batch, microbatches)
        unfilled = microbatches / (microbatches - 1 + last / each)  # rows take all micro-batches for full
        if high_s > enough_s and not pipelines.any_within(enough_s * unfilled):
            low_s = enough_s
        elif enough_s < inf:
            high_s = min(high_s, enough_s)
            while high_s - low_s > NEAR * high_s:
                middle_s = (low_s + high_s) / 2 if low_s else (1 - NEAR) * high_s / 2
                if pipelines.any_within(middle_s * unfilled):
                    high_s = middle_s
                else:
                    low_s = middle_s
        self._known[microbatches] = low_s, high_s
        return low_s

    @property
    def _is_large(self) -> bool:
        return sum(self.problem.devices) > MOST_UNITS

    @cached_property
    def _device_seconds(self) -> float:
        """Lower bound in any number of micro-batches: all work, shared evenly by all devices.

        Each op takes at least as long in more, smaller micro-batches (as in `planner.search.keep_all`), so the figures
        of the fewest micro-batches that a submesh allows stand for all of them. By prices per op that fails by half a
        per cent for mixtures of experts, far less than this bound gives away.
        """
        least_s = np.full(len(self.program.segments), inf)
        left = set(range(len(self.meshes)))
        for count in self.counts:
            each, last = cut_batch(self.program.batch, count)
            models = self._models(count, sorted(left))
            left -= set(models)
            for place, found in self._by_class(models, lambda one: one.figures()).items():
                filled = count - 1 + last / each
                least_s = np.minimum(least_s, filled * self.problem.meshes[place].ranks * found[:, WORK])
            if not left:
                break
        return float(least_s.sum()) / sum(self.problem.devices)

    def _relaxed(self, microbatches: int) -> RelaxedPipelines | None:
        """Every range of segments on every class of submeshes, at its least figures."""
        models = self._models(microbatches, range(len(self.meshes)))
        if not models:
            return None
        figures = self._by_class(models, lambda one: one.figures())
        cuts = np.array(self.problem.all_cuts)
        first, last = np.triu_indices(len(cuts), 1)
        several = last - first < len(cuts) - 1
        begin, end = (np.tile(one[several], len(figures)) for one in (first, last))
        mesh = np.repeat(list(figures), several.sum())
        order = np.lexsort((end, mesh, begin))
        ranges = _Ranges(cuts, begin[order], end[order], mesh[order])
        rows = _options(self.problem, microbatches, ranges.sums(figures), ranges)

        def memory() -> PricedMemory:
            usual = microbatches * seconds_per_byte(next(iter(models.values())))
            prices = np.array([usual / 2**halvings for halvings in range(RETRIES, 0, -1)])
            flights = np.array(sorted({1.0, min(float(microbatches), self.problem.stage_limit)}))
            priced = ranges.sums(self._by_class(models, lambda one: one.priced(prices, flights)))
            return PricedMemory(prices, flights, priced, ranges.sums(figures)[:, UPDATE])

        problem = replace(self.problem, microbatches=(microbatches,))
        return RelaxedPipelines(problem, rows, microbatches, memory if self.in_memory else None)

    def _models(self, microbatches: int, places: Iterable[int]) -> dict[int, ShardingModel]:
        """By place, of the meshes that batch and pins go with."""
        found: dict[int, ShardingModel] = {}
        for place in places:
            try:
                model = self.models(place, microbatches)
                model.space(model.program.segments[0])
            except PlanError:
                continue
            found[place] = model
        return found

    def _by_class(
        self, models: Mapping[int, ShardingModel], figures: Callable[[LeastFigures], Floats]
    ) -> dict[int, Floats]:
        """The least figures of every segment, by class of submeshes."""
        places = {one.devices: place for place, one in reversed(list(enumerate(self.problem.meshes)))}
        found: dict[int, Floats] = {}
        for index, model in models.items():
            own = figures(LeastFigures(model, not self._is_large))
            place = places[self.meshes[index].devices]
            found[place] = np.minimum(found[place], own) if place in found else own
        return found


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Rows of the stage programme: segments between two cuts on a class of submeshes."""

    cuts: Ints
    begin: Ints
    end: Ints
    mesh: Ints

    def sums(self, figures: Mapping[int, Floats]) -> Floats:
        """Of each row's segments, from those of every segment by class."""
        some = next(iter(figures.values()))
        found = np.empty((len(self.mesh), *some.shape[1:]))
        for place, one in figures.items():
            before = np.concatenate([np.zeros((1, *some.shape[1:])), np.cumsum(one, axis=0)])[self.cuts]
            own = self.mesh == place
            found[own] = before[self.end[own]] - before[self.begin[own]]
        return found


@dataclass
class RelaxedPipelines:
    """All pipelines in a number of micro-batches, at the least figures of their segments.

    make_memory: prices memory, if at all; asked for where a pipeline with no activations is fast enough.
    """

    problem: StageProblem
    rows: StageOptions
    microbatches: int
    make_memory: Callable[[], PricedMemory] | None

    def any_within(self, limit_s: float) -> bool:
        """Whether the bounds leave any pipeline that takes no longer."""
        found = self._roomy.any_within(limit_s)
        return found and (self.make_memory is None or self._in_memory.any_within(limit_s))

    @cached_property
    def _roomy(self) -> _Bounds:
        return _bounds(self.problem, self.rows, self.microbatches, None)

    @cached_property
    def _in_memory(self) -> _Bounds:
        memory = self.make_memory() if self.make_memory else None
        return _bounds(self.problem, self.rows, self.microbatches, memory)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """interleaved_s: the least bound on interleaved pipelines.
    others: those of other schedules.
    """

    interleaved_s: float
    others: tuple[Bound, ...]

    def any_within(self, limit_s: float) -> bool:
        return self.interleaved_s < limit_s or any(
            one.least_s() * (1 - CLOSE) < limit_s and one.possible(limit_s) for one in self.others
        )


def _bounds(problem: StageProblem, rows: StageOptions, microbatches: int, memory: PricedMemory | None) -> _Bounds:
    shapes = interleavings(problem) if "interleaved" in problem.schedules else ()
    every = (Interleaved(problem, rows, microbatches, *shape) for shape in shapes)
    interleaved_s = min((one.least_s(memory) for one in every if len(one.own)), default=inf)
    names = [name for name in (*problem.schedules, *problem.later) if name != "interleaved"]
    return _Bounds(interleaved_s, tuple(Bound(problem, rows, one, microbatches, memory=memory) for one in names))


def stage_classes(meshes: Sequence[StageMesh]) -> tuple[MeshClass, ...]:
    """Submeshes of the same devices as one class, with the most memory that one of them has."""
    found: dict[tuple[int, ...], MeshClass] = {}
    for one in meshes:
        most = max(one.memory_bytes, found[one.devices].memory_bytes if one.devices in found else 0)
        found[one.devices] = MeshClass(str(one.ranks), one.devices, most)
    return tuple(found.values())


def _options(problem: StageProblem, microbatches: int, sums: Floats, ranges: _Ranges) -> StageOptions:
    """Rows as the stage programme takes them; what `sums` do not have is free."""
    classes, mesh = len(problem.meshes), ranges.mesh
    cross_s, nothing = sums[:, CROSS], np.zeros(len(mesh))
    more_s = np.maximum(microbatches * sums[:, HOST], sums[:, STEP]) - microbatches * sums[:, WORK]
    limits = np.array([float(one.memory_bytes) for one in problem.meshes])
    return StageOptions(
        points=(),
        begin=ranges.begin,
        end=ranges.end,
        mesh=mesh,
        enter=mesh,
        leave=mesh,
        group=np.arange(len(mesh)),
        forward_s=cross_s,
        input_s=nothing,
        weight_s=sums[:, WORK] - cross_s,
        fixed_s=np.maximum(0.0, more_s),
        static_bytes=sums[:, STATIC],
        held_bytes=sums[:, STATIC],
        resident_bytes=nothing,
        restored_bytes=nothing,
        limit_bytes=limits[mesh],
        enters=tuple((place, None) for place in range(classes)),
        crossing_s=np.zeros((len(problem.all_cuts), classes, classes)),
    )
