"""A lower bound on every pipeline in a number of micro-batches: a relaxation of sharding, memory and messages.

Each segment takes the sharding that is fastest for it alone, whatever its neighbours take, and hides all it can.
Nothing is handed over between segments, and memory holds the training state alone. The stage programme over these
figures has all cuts, submeshes and schedules. So its bound covers pipelines of any shardings and recomputation,
searched or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from meshwright.capture.program import Program
from meshwright.cost.op.compute import op_seconds
from meshwright.cutting import cut_batch
from meshwright.errors import PlanError
from meshwright.planner.effort import MOST_UNITS, NEAR
from meshwright.planner.pipeline.meshes import StageMesh
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.space.long_lived import has_many_alive
from meshwright.planner.space.segment import Space
from meshwright.planner.stages.options import Floats, Ints, StageOptions
from meshwright.planner.stages.problem import MeshClass, StageProblem
from meshwright.planner.stages.search import any_within
from meshwright.price.parameter import Setting

FIGURES = WORK, CROSS, HOST, STATIC, STEP = range(5)
"""Of a segment: seconds of a micro-batch; of these, what is not a weight half; seconds of the host that asks for a
micro-batch; bytes of parameters, gradients and states on each device; seconds of a step, with conversions inside the
segment and what no compute hides."""


@dataclass
class PipelineRelaxation:
    """meshes: all submeshes that stages may have.
    problem: the stage programme of `stage_classes(meshes)`; its points are replaced.
    counts: numbers of micro-batches of the search, ascending.
    """

    program: Program
    meshes: Sequence[StageMesh]
    setting: Setting
    problem: StageProblem
    counts: Sequence[int]
    _options: dict[int, StageOptions | None] = field(default_factory=dict)
    _known: dict[int, tuple[float, float]] = field(default_factory=dict)

    def bound_s(self, microbatches: int, enough_s: float) -> float:
        """Lower bound on the step of every pipeline in so many micro-batches.

        enough_s: seconds above which the bound is not raised.
        """
        if self._is_large:
            return self._device_seconds
        low_s, high_s = self._known.get(microbatches, (0.0, inf))
        if microbatches not in self._options:
            self._options[microbatches] = self._relaxed(microbatches)
        if low_s >= enough_s:
            return low_s
        rows = self._options[microbatches]
        if rows is None:
            return inf
        each, last = cut_batch(self.program.batch, microbatches)
        unfilled = microbatches / (microbatches - 1 + last / each)  # rows take all micro-batches for full

        def possible(step_s: float) -> bool:
            made = {microbatches: rows}
            return any_within(replace(self.problem, microbatches=(microbatches,)), step_s * unfilled, made, made)

        if high_s > enough_s and not possible(enough_s):
            low_s = enough_s
        elif enough_s < inf:
            high_s = min(high_s, enough_s)
            while high_s - low_s > NEAR * high_s:
                middle_s = (low_s + high_s) / 2 if low_s else (1 - NEAR) * high_s / 2
                if possible(middle_s):
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
        ranks = {place: one.ranks for place, one in enumerate(self.problem.meshes)}
        least_s = np.full(len(self.program.segments), inf)
        left = list(self.meshes)
        for count in self.counts:
            each, last = cut_batch(self.program.batch, count)
            for place, found in self._figures(count, left).items():
                filled = count - 1 + last / each
                least_s = np.minimum(least_s, filled * ranks[place] * found[:, WORK])
            if not left:
                break
        return float(least_s.sum()) / sum(self.problem.devices)

    def _relaxed(self, microbatches: int) -> StageOptions | None:
        """Every range of segments on every class of submeshes, at its least figures."""
        figures = self._figures(microbatches, list(self.meshes))
        if not figures:
            return None
        cuts = np.array(self.problem.all_cuts)
        first, last = np.triu_indices(len(cuts), 1)
        several = last - first < len(cuts) - 1
        first, last = first[several], last[several]
        rows: list[Floats] = []
        mesh: list[Ints] = []
        for place, found in figures.items():
            sums = np.concatenate([np.zeros((1, found.shape[1])), np.cumsum(found, axis=0)])[cuts]
            rows.append(sums[last] - sums[first])
            mesh.append(np.full(len(first), place))
        return _options(self.problem, microbatches, np.concatenate(rows), np.concatenate(mesh), first, last)

    def _figures(self, microbatches: int, left: list[StageMesh]) -> dict[int, Floats]:
        """The least figures of every segment, by class of submeshes.

        left: the meshes to look at; those that allow so many micro-batches are removed.
        """
        each, _ = cut_batch(self.program.batch, microbatches)
        program, setting = self.program.at_batch(each), self.setting.cut(self.program.batch, microbatches)
        places = {one.devices: place for place, one in reversed(list(enumerate(self.problem.meshes)))}
        found: dict[int, Floats] = {}
        for stage in tuple(left):
            try:
                own = _least_figures(program, stage, setting, not self._is_large)
            except PlanError:
                continue  # the batch or the pins do not go with this mesh
            left.remove(stage)
            place = places[stage.devices]
            found[place] = np.minimum(found[place], own) if place in found else own
        return found


def stage_classes(meshes: Sequence[StageMesh]) -> tuple[MeshClass, ...]:
    """Submeshes of the same devices as one class, with the most memory that one of them has."""
    found: dict[tuple[int, ...], MeshClass] = {}
    for one in meshes:
        most = max(one.memory_bytes, found[one.devices].memory_bytes if one.devices in found else 0)
        found[one.devices] = MeshClass(str(one.ranks), one.devices, most)
    return tuple(found.values())


def _least_figures(program: Program, stage: StageMesh, setting: Setting, conversions: bool) -> Floats:
    """By segment; a weight counts in the first segment that reads it.

    conversions: count those inside a segment, which takes longer; never where many values are alive at once.
    """
    free = ShardingModel(program, stage.mesh, stage.pins, setting, overlap_weight=0.0)
    tables = conversions and not has_many_alive(program)
    known: dict[object, list[float]] = {}
    counted: set[str] = set()
    found = np.zeros((len(program.segments), len(FIGURES)))
    for index, segment in enumerate(program.segments):
        new = tuple(name not in counted for name in segment.params)
        key = (id(free.problem(index)) if tables else segment.graph, new)
        if key not in known:
            own = _least_of(free.space(segment), new)
            step_s = float(free.solve(index, 0.0).costs.min()) / free.scale if tables else 0.0
            known[key] = [*own, max(step_s, setting.microbatches * own[WORK])]
        counted.update(segment.params)
        found[index] = known[key]
    return found


def _least_of(here: Space, new: tuple[bool, ...]) -> list[float]:
    work_s = sum(float(costs.min()) for costs in here.op_costs)
    held = [here.least_weight(value)[0] for value, own in zip(here.graph.params, new, strict=True) if own]
    return [work_s, min(work_s, _cross_s(here)), sum(here.op_host_s), float(sum(held))]


def _cross_s(here: Space) -> float:
    """The least seconds of a micro-batch besides weight halves, which schedules may put off."""
    found = 0.0
    for (op, strategies), costs in zip(here.each(), here.op_costs, strict=True):
        if any(value.grad for value in op.results):
            halves = [op_seconds(op, one, here.values, here.mesh.sizes, here.mesh.device) for one in strategies]
            costs = costs - np.array([one.weight_s for one in halves])
        found += float(costs.min())
    return max(0.0, found)


def _options(
    problem: StageProblem, microbatches: int, sums: Floats, mesh: Ints, first: Ints, last: Ints
) -> StageOptions:
    """Rows as the stage programme takes them; what `sums` do not have is free. first, last: of one class's ranges."""
    classes = len(problem.meshes)
    begin, end = (np.tile(one, len(mesh) // len(first)) for one in (first, last))
    order = np.lexsort((end, mesh, begin))
    sums, mesh, begin, end = sums[order], mesh[order], begin[order], end[order]
    cross_s, nothing = sums[:, CROSS], np.zeros(len(mesh))
    more_s = np.maximum(microbatches * sums[:, HOST], sums[:, STEP]) - microbatches * sums[:, WORK]
    limits = np.array([float(one.memory_bytes) for one in problem.meshes])
    return StageOptions(
        points=(),
        begin=begin,
        end=end,
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
