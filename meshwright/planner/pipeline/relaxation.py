"""A lower bound on every pipeline in a number of micro-batches: a relaxation of sharding and messages.

Each segment takes the sharding and rematerialisation that are best for it alone (`least_figures`), whatever its
neighbours take, and hides all it can. Nothing is handed over between segments. The stage programme over these figures
has all cuts, submeshes and schedules. So its bound covers pipelines of any shardings and recomputation, searched or
not. Memory is priced (`planner.stages.priced_memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from meshwright.capture.program import Program
from meshwright.cutting import cut_batch
from meshwright.errors import PlanError
from meshwright.planner.effort import CLOSE, MOST_UNITS
from meshwright.planner.model_pins import experts_of
from meshwright.planner.pipeline.least_figures import WORK, LeastFigures
from meshwright.planner.pipeline.meshes import StageMesh
from meshwright.planner.pipeline.relaxed_pipelines import RelaxedPipelines
from meshwright.planner.sharding.model import ShardingModel
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
        if not self.exceeds(microbatches, enough_s) and not self._is_large:
            low_s, high_s = self._known[microbatches]
            while high_s - low_s > CLOSE * high_s and high_s < inf:
                self.exceeds(microbatches, (low_s + high_s) / 2)
                low_s, high_s = self._known[microbatches]
        return self.rough_bound_s(microbatches)

    def exceeds(self, microbatches: int, limit_s: float) -> bool:
        """Whether the bound is at least so many seconds, which takes less time than to find the bound."""
        low_s = self.rough_bound_s(microbatches)
        if self._is_large or low_s >= limit_s:
            return low_s >= limit_s
        high_s = self._known[microbatches][1]
        if limit_s >= high_s:
            return False
        pipelines = self._of(microbatches)
        is_open = pipelines is not None and pipelines.any_within(limit_s)
        self._known[microbatches] = (low_s, limit_s) if is_open else (limit_s, high_s)
        return not is_open

    def rough_bound_s(self, microbatches: int) -> float:
        """The bound as far as it is known: at first, what all devices take together."""
        if self._is_large:
            return self._device_seconds
        if microbatches not in self._known:
            pipelines = self._of(microbatches)
            self._known[microbatches] = (pipelines.least_s if pipelines else inf, inf)
        return self._known[microbatches][0]

    def _fewer(self, microbatches: int) -> RelaxedPipelines | None:
        """Pipelines in fewer micro-batches, the most that are known or the fewest, whose figures are no higher; none
        where ops may be faster in pieces, or micro-batches differ in size."""
        if not self._is_rising or self.program.batch % microbatches:
            return None
        known = {*self.counts[:1], *self._pipelines}
        fewer = max((count for count in known if count < microbatches and microbatches % count == 0), default=None)
        return None if fewer is None else self._of(fewer)

    @cached_property
    def _is_rising(self) -> bool:
        """Whether each op takes at least as long in more, smaller micro-batches: not in the caches of a CPU, nor, by
        prices per op, in mixtures of experts."""
        return all(one.mesh.device.kind == "cuda" for one in self.meshes) and not experts_of(self.program)

    def _of(self, microbatches: int) -> RelaxedPipelines | None:
        if microbatches not in self._pipelines:
            self._pipelines[microbatches] = self.relaxed(microbatches)
        return self._pipelines[microbatches]

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
            for place, model in models.items():
                work_s = LeastFigures(model, conversions=False).figures()[:, WORK]
                least_s = np.minimum(least_s, (count - 1 + last / each) * self.meshes[place].ranks * work_s)
            if not left:
                break
        return float(least_s.sum()) / sum(self.problem.devices)

    def relaxed(self, microbatches: int) -> RelaxedPipelines | None:
        """With no class refined yet; none where no submesh goes with the batch and the pins."""
        models = self._models(microbatches, range(len(self.meshes)))
        if not models:
            return None
        by_class: dict[int, list[ShardingModel]] = {}
        places = {one.devices: place for place, one in reversed(list(enumerate(self.problem.meshes)))}
        for index, model in models.items():
            by_class.setdefault(places[self.meshes[index].devices], []).append(model)
        problem = replace(self.problem, microbatches=(microbatches,))
        each, last = cut_batch(self.program.batch, microbatches)
        full = each == last  # a smaller last micro-batch holds less than memory is priced at
        return RelaxedPipelines(
            problem, by_class, self.program.batch, microbatches, self.in_memory and full, self._fewer(microbatches)
        )

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


def stage_classes(meshes: Sequence[StageMesh]) -> tuple[MeshClass, ...]:
    """Submeshes of the same devices as one class, with the most memory that one of them has."""
    found: dict[tuple[int, ...], MeshClass] = {}
    for one in meshes:
        most = max(one.memory_bytes, found[one.devices].memory_bytes if one.devices in found else 0)
        found[one.devices] = MeshClass(str(one.ranks), one.devices, most)
    return tuple(found.values())
