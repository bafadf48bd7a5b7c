"""Branch and bound over pipelines: stages of any sizes, their submeshes and shardings, schedule, recomputation.

A node is a micro-batch count. It is pruned where the relaxation of all its pipelines (`relaxation`) is not below the
incumbent, or where the fastest chains of all submeshes are not, with unlimited memory. Otherwise every submesh offers
chains (`sharded_chains`), whose ranges are the rows of the stage programme (`table`, `planner.stages`). The best few
pipelines are simulated with their devices placed. The fastest becomes a Plan, recomputes on traced pairs until it fits,
and is simulated from the plan alone (`fit`): that is the incumbent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf

from meshwright.capture.averaging import comes_apart
from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.cluster.enumerate import per_host
from meshwright.cutting import batch_cuts, cut_batch
from meshwright.errors import PlanError, counted
from meshwright.pins.stages import PipelinePins
from meshwright.plan import Plan
from meshwright.plan.units import show_seconds
from meshwright.planner.effort import ANY_BYTES, FEW, MOST_UNITS, NEAR, ROUGH
from meshwright.planner.interrupt import STOP
from meshwright.planner.pipeline.fit import checkpointed, fitted
from meshwright.planner.pipeline.meshes import StageMesh, SubmeshLinks, stage_meshes
from meshwright.planner.pipeline.pins import FEWEST_RUNS, check_pins
from meshwright.planner.pipeline.placing import crossings, sharded_runs
from meshwright.planner.pipeline.realize import pipeline_plan, route_far_values
from meshwright.planner.pipeline.relaxation import PipelineRelaxation, stage_classes
from meshwright.planner.pipeline.reschedule import MOST_TASKS, has_many_tasks, reordered
from meshwright.planner.pipeline.sharded_chains import (
    First,
    ShardedChain,
    first_chains,
    more_chains,
    sharding_model,
    with_remat_levels,
)
from meshwright.planner.pipeline.shortlist import chosen_ports, start_s
from meshwright.planner.pipeline.table import Table
from meshwright.planner.search_log import SearchRecorder
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.stages.options import StageOptions
from meshwright.planner.stages.problem import MeshClass, Pipelined, PlacedRun, StageProblem, StageSolution
from meshwright.planner.stages.search import FIRST, SIMULATIONS, any_within, solve_stages
from meshwright.predict import predicted
from meshwright.price.parameter import Setting

SCHEDULES = ("1f1b", "zero-bubble", "interleaved")
"""Of the stage programme. The incumbent is then tried under a searched schedule (`reschedule`)."""

FIXED_IN_STAGES = ("full", "selective")
"""Methods of activation checkpointing by which every segment of a pipeline keeps the same kind of values."""

SAMPLES = 4
"""Samples of the first micro-batch that is tried, for each host of the smallest stage. It has more where there would be
over MOST_UNITS micro-batches for each device, since more hardly fill a pipeline better."""

GROUPS = 192
"""Programs of more segments are cut only between so many groups of them, rounded up to a multiple of the stages that
are pinned."""


def has_pipelines(program: Program, cluster: Cluster, pins: PipelinePins) -> bool:
    """Whether there are pipelines to search."""
    several = cluster.device_count > 1 and len(program.segments) > 1
    return not pins.one_stage and (several or pins.pipeline)


@dataclass(slots=True)
class PipelineSearch:
    """Branch and bound over micro-batch counts. A node is the stage programme of one count.

    `begin`, `go_on` and `finish` are its parts: the incumbent of each prunes other searches, and theirs prune the next.

    recompute: segments may recompute.
    first: the first pipeline that fits is enough.
    exact: the bytes of the answer are those of traced pairs. Otherwise its peak is a rough count.
    gap: a node is pruned if its bound is within this part of the incumbent.
    headroom: part of each device that is left free where there is no budget.
    method: of activation checkpointing, where recomputation is allowed.
    incumbent_s: step of the incumbent, found here or elsewhere.
    best: the incumbent, if it was found here.
    promising: pipelines that may be faster than the incumbent under a searched schedule.
    rough: step by the stage programme over that of the plan, of the node expanded last.
    tried: step of each micro-batch count; None where it is to be tried again with more memory.
    unfit: micro-batch counts of which nothing fits by the rough count of bytes.
    hopeless: micro-batch counts of which even the fastest chains are no faster than the incumbent.
    kept: submeshes that other micro-batch counts are tried on; all where it is empty.
    """

    program: Program
    cluster: Cluster
    budget_bytes: int | None
    setting: Setting
    pins: PipelinePins = field(default_factory=lambda: PipelinePins(None, None, ()))
    log: SearchRecorder = field(default_factory=SearchRecorder)
    recompute: bool = True
    first: bool = False
    exact: bool = True
    gap: float = 0.0
    headroom: float = 0.0
    method: str = "auto"
    incumbent_s: float = inf
    best: Plan | None = None
    promising: tuple[Pipelined, ...] = ()
    rough: float = 1.0
    meshes: list[StageMesh] = field(default_factory=list)
    tried: dict[int, float | None] = field(default_factory=dict)
    unfit: list[int] = field(default_factory=list)
    hopeless: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    models: dict[tuple[int, int], ShardingModel] = field(default_factory=dict)
    firsts: dict[tuple[int, int], list[First]] = field(default_factory=dict)
    offered: dict[tuple[int, int], list[ShardedChain]] = field(default_factory=dict)
    submesh_links: SubmeshLinks = field(init=False)
    relaxation: PipelineRelaxation = field(init=False)

    def __post_init__(self) -> None:
        check_pins(self.pins, self.program, self.cluster)
        self.submesh_links = SubmeshLinks(self.cluster)
        self.meshes = stage_meshes(
            self.cluster, self.pins.rest, self.budget_bytes, self.pins.stages or 2, self.pins.sizes, self.headroom
        )
        layers, segments = self.pins.layers, len(self.program.segments)
        cuts = range(segments + 1) if layers is None else accumulate((0, *layers))
        problem = self._problem(stage_classes(self.meshes), tuple(cuts), 1)
        few = segments <= GROUPS
        self.relaxation = PipelineRelaxation(self.program, self.meshes, self._model, problem, self.counts(), few)

    def begin(self) -> Plan | None:
        """The best pipeline of the first micro-batch count that fits, by a rough count of its bytes."""
        for count in self.counts()[self.start() :]:
            self.try_count(count)
            if self.best is not None:
                break
        return self.best

    def go_on(self, others_s: float) -> Plan | None:
        """The best pipeline of all micro-batch counts, if one of their bounds is below `others_s`, the step of other
        plans."""
        if self.best is None or all(self.relaxation.exceeds(count, others_s) for count in self.counts()):
            return None
        self.search_microbatches()
        return self.best

    def finish(self, incumbent_s: float = inf) -> Plan | None:
        """The fastest pipeline found; None where none is faster than `incumbent_s`."""
        if incumbent_s < self.incumbent_s:
            self.incumbent_s, self.best = incumbent_s, None
        self.search_microbatches()
        if self.best is None and incumbent_s == inf:
            self.relax_memory()
            self.search_microbatches()
        elif not self.first and not STOP.requested and (again := self.too_tight()):
            self.relax_memory()
            for count in again:
                if not STOP.requested:
                    self.try_count(count)
        if self.best is None or self.first or STOP.requested:
            return self.best
        self.reorder()
        best = route_far_values(self.best, self.program)
        return predicted(best, self.program) if self.exact else best

    @property
    def cutoff_s(self) -> float:
        """The seconds that a pipeline has to beat; an incumbent found elsewhere has the gap taken off."""
        return self.incumbent_s if self.best is None else (1 - self.gap) * self.incumbent_s

    def relax_memory(self) -> None:
        """More memory for the stage programme, whose rough count is above that of traced pairs.

        Whether a pipeline fits is then decided on traced pairs.
        """
        self.meshes = [replace(mesh, memory_bytes=int(ROUGH * mesh.memory_bytes)) for mesh in self.meshes]
        self.kept, self.tried = set(), dict.fromkeys(self.tried)

    def too_tight(self) -> list[int]:
        """Micro-batch counts where the rough count of bytes may hide a better pipeline, if simulation is short."""
        best, devices = self.best, self.cluster.device_count
        if devices > MOST_UNITS:
            return []
        counts, stages = self.unfit, devices
        if best is not None:
            stages = len(best.stages)
            pairs = zip(best.predicted.stages, self._budgets(best), strict=True)
            if best.recomputes or any(ROUGH * stage.peak_bytes > limit for stage, limit in pairs):
                counts = [best.microbatches, *counts]
        return [count for count in counts if not has_many_tasks(stages, count)]

    def counts(self) -> list[int]:
        """Micro-batch counts of the search, ascending."""
        pinned = [mesh.pins.microbatches for mesh in self.meshes if mesh.pins.microbatches]
        if pinned:
            return pinned[:1]
        if self.program.couples_samples or not comes_apart(self.program):
            return [1]
        return batch_cuts(self.program.batch, MOST_TASKS)

    def start(self) -> int:
        """The place of the micro-batch count that is tried first."""
        total, counts = self.cluster.device_count, self.counts()
        hosts = max(1, total // MOST_UNITS // per_host(self.cluster))
        samples = max(SAMPLES * hosts, self.program.batch / (MOST_UNITS * total))
        return min(range(len(counts)), key=lambda i: abs(self.program.batch / counts[i] - samples))

    def search_microbatches(self) -> None:
        """Hill climbing over micro-batch counts: to larger ones, or to smaller where larger ones do not help.

        It goes on as long as a step gets shorter; while nothing fits, to the largest count.
        """
        counts, start = self.counts(), self.start()
        worth = 1 - NEAR if self.cluster.device_count > MOST_UNITS else 1.0
        first_s = self.try_count(counts[start])
        for way in (1, -1):
            at, better, incumbent_s = start + way, True, first_s
            if way < 0 and self.cluster.device_count <= MOST_UNITS:
                self.kept = set()  # those of more micro-batches may be too slow in fewer
            while 0 <= at < len(counts) and better and not ((self.first or STOP.requested) and self.best):
                found_s = self.try_count(counts[at])
                better = found_s < worth * incumbent_s or self.incumbent_s == inf
                incumbent_s = min(incumbent_s, found_s)
                at += way
            if incumbent_s < first_s:
                break
        self.try_fewer()

    def try_fewer(self) -> None:
        """Tries fewer micro-batches than any so far, the lowest bound first, until chains that save memory are no
        faster either: hill climbing does not come to the fewest, in which weights are gathered least often. On very
        many devices all have one bound."""
        if self.cluster.device_count > MOST_UNITS:
            return
        left = [count for count in self.counts() if count < min(self.tried, default=0)]
        for count in sorted(left, key=self.relaxation.rough_bound_s):
            incumbent_s = self.incumbent_s
            if incumbent_s == inf or STOP.requested or self.first:
                return
            if self.relaxation.exceeds(count, self.cutoff_s):
                continue
            self.kept = set()
            if self.try_count(count) >= incumbent_s and count not in self.hopeless:
                return

    def bound_s(self, enough_s: float) -> float:
        """Lower bound on all pipelines: every micro-batch count, tried or not, every sharding and submesh.

        enough_s: seconds above which the bound is not raised.
        """
        found_s = enough_s
        rough = {count: self.relaxation.rough_bound_s(count) for count in self.counts()}
        for count in sorted(rough, key=rough.__getitem__):  # the least bound is all that is asked for
            node, step_s = f"pipelines, {counted(count, 'micro-batch')}", self.relaxation.bound_s(count, found_s)
            if found_s > step_s >= self.cutoff_s:
                self.log.pruned(node, "its bound is within the gap that is allowed", step_s)
            elif step_s < found_s:
                tried = "shardings that were not offered" if count in self.tried else "not tried"
                self.log.stopped(node, f"{tried}: a step between this bound and the plan's is not ruled out", step_s)
            elif count not in self.tried and found_s < enough_s:
                self.log.stopped(node, "not tried: its bound is no lower than that of others", found_s)
            elif count not in self.tried:
                self.log.pruned(node, f"not tried: none is faster than {show_seconds(found_s)}", found_s)
            else:
                self.log.raised(node, found_s)
            found_s = min(found_s, step_s)
        return found_s

    def try_count(self, count: int) -> float:
        """The simulated step of the best pipeline of one micro-batch count; infinite where none beats the incumbent."""
        found_s = self.tried.get(count)
        if found_s is None:
            found_s = self.tried[count] = self._try_count(count)
        return found_s

    def _try_count(self, count: int) -> float:
        node = f"pipelines, {counted(count, 'micro-batch')}"
        cutoff_s = self.cutoff_s
        if self.incumbent_s < inf and self.relaxation.exceeds(count, cutoff_s):
            why = f"none is faster than {show_seconds(cutoff_s)}, whatever its shardings"
            self.log.pruned(node, why, cutoff_s)
            return inf
        if self._is_hopeless(count):
            self.hopeless.add(count)
            why = f"the fastest shardings of all submeshes are no faster than {show_seconds(cutoff_s)}"
            self.log.pruned(node, f"{why}, even with unlimited memory")
            return inf
        table = self._table(count)
        if table is None:
            self.unfit.append(count)
            self.log.pruned(node, "no chain of layers fits on any submesh")
            return inf
        floor_s = count * float(table.least_work[-1]) / self.cluster.device_count
        guess_s = inf if self.pins.sizes else start_s(table, self.pins.stages)
        solution = None
        each, last = cut_batch(self.program.batch, count)
        unfilled = count / (count - 1 + last / each)  # here all micro-batches are taken for full
        most_s = self.cutoff_s * unfilled * self.rough
        for limit_s in (min(most_s, ROUGH * guess_s), most_s):
            solution = self._solved(table, table.options(limit_s), limit_s) if floor_s < limit_s else None
            if solution is not None or limit_s >= most_s:
                break
        if solution is None:
            bound_s = max(floor_s, min(limit_s, self.incumbent_s))
            what = f"none is faster than {show_seconds(limit_s)}" if limit_s < inf else "nothing fits"
            if limit_s == inf:
                self.unfit.append(count)
            self.log.pruned(node, f"of the shardings offered {what}", bound_s)
            return inf
        fitted_s = self._fit_step_s(solution.runs, solution.schedule, solution.microbatches)
        stages = counted(len({run.stage for run in solution.runs}), "stage")
        self.log.expanded(node, f"{stages}, {solution.schedule}", solution.bound_s, fitted_s)
        if fitted_s <= self.incumbent_s:
            self.promising = solution.promising
        if fitted_s < inf:
            self.rough = max(1.0, solution.step_s / unfilled / fitted_s)
            return fitted_s
        others_s = (self._fit_step_s(*one) for one in solution.others)
        return next((step_s for step_s in others_s if step_s < inf), inf)

    def _solved(self, table: Table, made: StageOptions | None, limit_s: float) -> StageSolution | None:
        problem, count = self._table_problem(table), table.microbatches
        budget = SIMULATIONS if table.total <= MOST_UNITS else FIRST
        interleaved = table.options(limit_s, interleaved=True) if "interleaved" in problem.schedules else None
        try:
            return solve_stages(problem, {count: made}, budget, limit_s, {count: interleaved})
        except PlanError:
            return None  # too little memory for any

    def _table(self, count: int) -> Table | None:
        setting = self.setting.cut(self.program.batch, count)
        found: list[ShardedChain] = []
        total = self.cluster.device_count
        for index in self._tried(count):
            most_s = ROUGH * self.incumbent_s * total / self.meshes[index].ranks
            if (index, count) not in self.offered:  # with more memory, or a better incumbent, no more is offered
                first = self._first(index, count)
                flight = min(count, total // self.meshes[index].ranks)
                self.offered[index, count] = more_chains(
                    first, index, self.meshes[index], self.recompute, most_s, flight
                )
                del self.firsts[index, count]
            found += self.offered[index, count]
        few = self.pins.stages is not None or total <= FEW
        kept = chosen_ports(found, self.meshes, total, count, inf if few else ROUGH**2)
        if not kept:
            return None
        small = self.program.at_batch(cut_batch(self.program.batch, count)[0])
        self.kept = {sharded.mesh for sharded in kept}
        if self.recompute:
            compiled = self.setting.compile
            kept = [
                with_remat_levels(sharded, small, self.meshes[sharded.mesh], self.method, compiled) for sharded in kept
            ]
        stages = self.pins.stages or 1
        groups = stages * -(-GROUPS // stages) if len(self.program.segments) > GROUPS else None
        return Table(small, self.meshes, kept, self.submesh_links, setting, groups, self.pins.layers)

    def _first(self, index: int, count: int) -> list[First]:
        if (index, count) not in self.firsts:
            model = self._model(index, count)
            self.firsts[index, count] = first_chains(model, index, self.meshes[index], self.recompute)
        return self.firsts[index, count]

    def _model(self, index: int, count: int) -> ShardingModel:
        """Shardings on the submesh at a place, in a number of micro-batches."""
        if (index, count) not in self.models:
            setting = self.setting.cut(self.program.batch, count)
            self.models[index, count] = sharding_model(self.program, self.meshes[index], setting)
        return self.models[index, count]

    def _is_hopeless(self, count: int) -> bool:
        """Whether no pipeline of the fastest chains of all submeshes beats the incumbent, with unlimited memory. Chains
        that save memory are then not made."""
        if self.incumbent_s == inf or self.best or self.pins.pipeline or len(self.program.segments) > GROUPS:
            return False
        found = [sharded for index in self._tried(count) for _, _, sharded in self._first(index, count)]
        if not found:
            return False
        roomy = [replace(mesh, memory_bytes=ANY_BYTES) for mesh in self.meshes]
        each, last = cut_batch(self.program.batch, count)
        setting = self.setting.cut(self.program.batch, count)
        table = Table(self.program.at_batch(each), roomy, found, self.submesh_links, setting)
        limit_s = self.cutoff_s * count / (count - 1 + last / each)  # here all micro-batches are taken for full
        problem, made, interleaved = (
            self._table_problem(table),
            table.options(limit_s),
            table.options(limit_s, interleaved=True),
        )
        if any_within(problem, limit_s, {count: made}, {count: interleaved}):
            return False
        total = self.cluster.device_count
        if total > FEW:  # other numbers of micro-batches are as hopeless on the others
            self.kept = {sharded.mesh for sharded in chosen_ports(found, self.meshes, total, count, ROUGH**2)}
        return True

    def _tried(self, count: int) -> list[int]:
        """Places of the submeshes to try: all at first, then those of the chains that were kept. On very many devices
        those whose outer axis divides the samples."""
        if self.cluster.device_count > MOST_UNITS and not self.pins.rest:
            samples = self.program.batch // count
            return [i for i, mesh in enumerate(self.meshes) if samples % mesh.mesh.sizes[0] == 0]
        return sorted(self.kept) if self.kept else list(range(len(self.meshes)))

    def _table_problem(self, table: Table) -> StageProblem:
        meshes = tuple(MeshClass(mesh.name, mesh.devices, mesh.memory_bytes) for mesh in table.meshes)
        found = self._problem(meshes, tuple(table.cuts.tolist()), table.microbatches)
        links = self.submesh_links
        return replace(
            found, placed=lambda runs, _: crossings(self.cluster, links, table, sharded_runs(runs, self.meshes))
        )

    def _problem(self, meshes: tuple[MeshClass, ...], cuts: tuple[int, ...], microbatches: int) -> StageProblem:
        """The StageProblem that the pins allow, without rows."""
        names = self.cluster.device_names()
        return StageProblem(
            segments=len(self.program.segments),
            cuts=cuts,
            meshes=meshes,
            devices=tuple(names.count(device.name) for device in self.cluster.devices),
            microbatches=(microbatches,),
            schedules=self._schedules(),
            later=("searched",) if self._reorders() else (),
            interleave=self._numbers_of_runs(),
            most_stages=self.pins.stages,
            least_stages=self.pins.stages or 2,
            sizes=self.pins.sizes,
            overlap=True,
            idle=False,
        )

    def _numbers_of_runs(self) -> tuple[int, ...]:
        """Runs a stage, under `interleaved`: doubled as long as two stages have layers for so many."""
        if self.pins.runs is not None:
            return (self.pins.runs,)
        found = [FEWEST_RUNS]
        while 2 * 2 * found[-1] <= len(self.program.segments):
            found.append(2 * found[-1])
        return tuple(found)

    def _reorders(self) -> bool:
        """Whether incumbents are tried under a searched schedule: on very many devices only if that is pinned."""
        few = self.cluster.device_count <= MOST_UNITS
        named = self.pins.schedule is not None or self.pins.runs is not None
        return self.pins.schedule == "searched" or (not named and few)

    def _schedules(self) -> tuple[str, ...]:
        pinned, runs = self.pins.schedule, 1 if self.pins.layers else self.pins.runs
        if runs is not None and pinned is None:
            return tuple(name for name in SCHEDULES if (name == "interleaved") == (runs > 1))
        return SCHEDULES if pinned in (None, "searched") else (pinned,)

    def _fit_step_s(self, runs: tuple[PlacedRun, ...], schedule: str, microbatches: int) -> float:
        """The step of a pipeline as a plan; infinite where no recomputation makes it fit."""
        made = self._made(runs, schedule, microbatches)
        if made is not None and self.pins.schedule == "searched":
            made = reordered(made, self.program, self._budgets(made))
        self._take(made)
        return inf if made is None else made.predicted.step_s

    def _made(self, runs: tuple[PlacedRun, ...], schedule: str, microbatches: int) -> Plan | None:
        setting = self.setting.cut(self.program.batch, microbatches)
        plan = pipeline_plan(
            self.program, self.cluster, sharded_runs(runs, self.meshes), schedule, setting, self.submesh_links
        )
        if self.method in FIXED_IN_STAGES:
            return checkpointed(plan, self.program, self._budgets(plan), self.method)
        return fitted(plan, self.program, self._budgets(plan))

    def _take(self, made: Plan | None) -> None:
        if made is not None and made.predicted.step_s < self.incumbent_s:
            self.best, self.incumbent_s = made, made.predicted.step_s
            node = f"{len(made.groups)} stages, {counted(made.microbatches, 'micro-batch')}, {made.schedule}"
            self.log.incumbent(node, made.predicted.step_s)

    def reorder(self) -> None:
        """Tries the incumbent and the promising pipelines under a searched schedule, unless a schedule is pinned."""
        if self.best is None or self.pins.schedule is not None or not self._reorders():
            return
        few = (one for one in self.promising if not has_many_tasks(len(one[0]), one[2]))
        made = (self._made(*one) for one in few)
        for plan in (self.best, *made):
            self._take(reordered(plan, self.program, self._budgets(plan)) if plan else None)

    def _budgets(self, plan: Plan) -> list[int]:
        return [group[0].mesh.device.limit_bytes(self.budget_bytes, self.headroom) for group in plan.groups]
