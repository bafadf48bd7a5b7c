"""From a Program and a cluster to a Plan: every mesh, every number of micro-batches, the best chain, in writing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from meshwright.capture.coupling.parts import check_in_parts
from meshwright.capture.lock import PLANNING
from meshwright.capture.optimizer import check_optimizer
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, Mesh
from meshwright.errors import PlanError
from meshwright.pins.offload import pinned_offload
from meshwright.pins.pins import pin_parts, pinned_devices
from meshwright.plan import Plan
from meshwright.plan.loaded import preset_named
from meshwright.plan.recent import remember
from meshwright.predict import predicted
from meshwright.price.parameter import Setting
from meshwright.rules import served, warn_of_fallbacks
from meshwright.solve.assemble import assemble, draft
from meshwright.solve.by_method import ANYWHERE, method_search, pinned_method
from meshwright.solve.candidates import allowed_meshes, candidates_on, tight_candidates
from meshwright.solve.compiled import compiled_plan
from meshwright.solve.effort import EFFORTS, SIMPLER_WITHIN, Effort, check_part, effort_of
from meshwright.solve.feasibility import (
    feasible_jointly,
    feasible_kept,
    feasible_min_memory,
    feasible_pipeline,
    feasible_swept,
    min_memory_plan,
)
from meshwright.solve.infeasible import does_not_fit, least_of
from meshwright.solve.interrupt import STOP
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.mix import Chain
from meshwright.solve.joint import joint_search
from meshwright.solve.min_memory import (
    MemoryNeeded,
    Part,
    WorkBudget,
    counted_pipeline,
    minimum_budget,
    minimum_pipeline_budget,
)
from meshwright.solve.min_memory_by_method import least_by_method, no_room
from meshwright.solve.offloading import offloading
from meshwright.solve.one_device import is_for_one_device, one_device_search
from meshwright.solve.pin_words import check_storage, check_words
from meshwright.solve.pipeline.pins import PipelinePins, no_pipeline, pipeline_pins
from meshwright.solve.pipeline.search import PipelineSearch
from meshwright.solve.roles import name_axes
from meshwright.solve.search import Candidate, Found, Progress, anyway, search

FEW = 3
"""Meshes of more than two axes on which recomputation is looked at; of the others the bound counts."""

ROUNDING = 1e-12
"""A gap below this is that of adding the same seconds in another order."""

ONE_STAGE_FIRST = 64
"""Devices up to which plans of one stage are looked for before pipelines."""

LESS_ROOM = 3
"""Searches with less memory where the traced pairs of what was found take more than the search counted."""


def make_plan(
    program: Program,
    cluster: Cluster,
    *,
    model: str = "",
    memory_bytes: int | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    compile: bool = False,
    pins: Iterable[str] = (),
    max_axes: int = 3,
    fit: bool = True,
    recompute: bool = True,
    progress: Progress | None = None,
    stage_method: str = "auto",
    simpler_within: float = SIMPLER_WITHIN,
    effort: str = "default",
) -> Plan:
    """The fastest plan that fits, over all meshes of up to `max_axes` axes of the cluster's devices and all pipelines.

    On a mesh of one or two axes everything is looked at; on one of more, all but two of them are given to samples.
    `program` is captured in the dtype it computes in: bfloat16 for `bf16` and `mixed`. fit: refuse where none fits;
    otherwise the fastest of the most micro-batches is the answer then. recompute: where memory binds, activations may
    be made again in backward. stage_method: how pipelines' stages are searched for, `auto` or one of the survey's.
    compile: segments are compiled by inductor, and priced so. simpler_within: of plans whose steps differ by no more
    than this part of the fastest the simplest is taken; 0: the fastest. effort: how much is searched, `fast`, `default`
    or `proof`.
    """
    check_part("simpler_within", simpler_within)
    work = effort_of(effort)
    texts = tuple(pins)

    def search(memory: int | None, compile: bool = False) -> Plan:
        return _make_plan(
            program, cluster, model, memory, optimizer, precision, compile, texts, max_axes, fit, recompute, progress,
            stage_method, simpler_within, work,
        )  # fmt: skip

    with PLANNING, STOP.heeded():
        warn_of_fallbacks(program)
        if not compile or cluster.device_count == 1:
            return search(memory_bytes, compile)
        check_words(texts, cluster)
        method = pinned_method(texts)[0] if recompute else "keep"
        return compiled_plan(search, program, memory_bytes, _budget(cluster, memory_bytes), method)


def _make_plan(
    program: Program,
    cluster: Cluster,
    model: str,
    memory_bytes: int | None,
    optimizer: str,
    precision: str,
    compile: bool,
    texts: tuple[str, ...],
    max_axes: int,
    fit: bool,
    recompute: bool,
    progress: Progress | None,
    stage_method: str,
    simpler_within: float,
    effort: Effort,
) -> Plan:
    check_optimizer(optimizer)
    setting = Setting(optimizer, precision, compile=compile)
    check_words(texts, cluster)
    check_storage(texts, program)
    for name, number in map(pin_parts, texts):
        if name in ("microbatch", "microbatches") and number.isdigit():
            check_in_parts(program, int(number))
    method, rest = pinned_method(texts)
    offload, rest = pinned_offload(rest)
    if offload is not None and offload.kind:
        setting = offloading(setting, program, cluster, offload)
    recompute &= method != "keep"
    asked = pipeline_pins(rest)
    alone = asked.one_stage or method not in ANYWHERE
    given: dict[str, Any] = {"model": model, "memory_bytes": memory_bytes, "pins": texts, "cluster": _name(cluster)}
    given |= {"compile": compile, "answers": program.answers, "form": program.form}
    if is_for_one_device(cluster, rest):
        saving = method if recompute else "keep"
        one = one_device_search(program, cluster, memory_bytes, setting, asked.rest, saving, fit, progress)
        return _finished(replace(one, **given), program)
    whole = _OneStage(program, cluster, asked.rest, setting, max_axes, recompute, given, progress)
    whole.few, whole.method = not fit, method  # what is pinned down has little left to weigh
    whole.simpler_within, whole.effort = max(simpler_within, ROUNDING), effort
    in_several = (program, cluster, memory_bytes, setting, asked, progress, recompute, stage_method)
    staged = PipelineSearch(*in_several, exact=False) if fit and not alone else None
    early, must = cluster.device_count <= ONE_STAGE_FIRST and not asked.pipeline, alone or not fit
    plan, bound_s = _searched(whole, staged, memory_bytes, early, must, asked)
    plan = replace(plan, **given) if plan else None
    if plan is None and not fit:
        chosen = whole.anyway()
        plan = whole.written(*chosen) if chosen else None
    if plan is None:
        in_stages = partial(
            feasible_pipeline, program, cluster, setting=setting, asked=asked, recompute=recompute, method=stage_method
        )
        if asked.pipeline:
            budget = whole.budget(memory_bytes)
            segments = len(program.segments)
            raise no_pipeline(asked, cluster, budget, lambda: minimum_pipeline_budget(in_stages, budget, segments))
        raise whole.refusal(memory_bytes, () if alone or cluster.device_count < 2 else (in_stages,))
    plan = predicted(plan, program) if len(plan.stages) > 1 else plan
    step_s = plan.predicted.step_s
    gap = 1.0 - bound_s / step_s if step_s else 0.0
    gap = 1.0 if STOP.asked else gap if gap > ROUNDING else 0.0  # 1: no bound is known
    return _finished(plan.with_prediction(gap=gap), program)


def _finished(plan: Plan, program: Program) -> Plan:
    """With its axes named after what they do, and what gave each op its rule."""
    rules: dict[str, tuple[str, ...]] = {tier: targets for tier, targets in served(program).items() if targets}
    named = replace(name_axes(program, plan), rules=rules)
    named.verify()
    remember(named.fingerprint, program)
    return named


def _searched(
    whole: _OneStage,
    staged: PipelineSearch | None,
    memory_bytes: int | None,
    early: bool,
    must: bool,
    asked: PipelinePins,
) -> tuple[Plan | None, float]:
    """(the fastest plan of one stage or several, a bound on all). early: one stage before pipelines, which its best
    prunes; where nothing fits with all kept, after a first look at them."""
    plan, bound_s = staged.finish() if staged and not early else (None, inf)
    if asked.pipeline:
        return plan, bound_s
    if STOP.asked and plan:
        return plan, bound_s
    kept = whole.keep_all(memory_bytes, plan, must)
    if staged and early and (kept is None or kept.best is None):
        plan = staged.begin()
    plan, whole_s = whole.search(memory_bytes, plan, kept) if kept else (plan, inf)
    bound_s = min(bound_s, whole_s)
    if staged and early and not (STOP.asked and plan):
        alone = plan is not None and len(plan.stages) == 1
        known_s = plan.predicted.step_s * (1 - whole.simpler_within) if plan and alone else inf
        several, several_s = staged.finish(known_s)
        plan, bound_s = several or plan, min(bound_s, several_s)
    return plan, bound_s


def _name(cluster: Cluster) -> str:
    """As a plan has it: one that is called as a preset and has other devices is not taken for it later."""
    preset = preset_named(cluster.name)
    changed = preset is not None and preset.device_names() != cluster.device_names()
    return f"{cluster.name} (changed)" if changed else cluster.name


def _budget(cluster: Cluster, memory_bytes: int | None) -> int:
    usable = cluster.mesh((cluster.device_count,)).device.usable_bytes
    return min(memory_bytes or usable, usable)


class _OneStage:
    """Plans that run the whole chain on all devices."""

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        pins: tuple[str, ...],
        setting: Setting,
        max_axes: int,
        recompute: bool,
        given: dict[str, Any],
        progress: Progress | None,
    ) -> None:
        self.program, self.cluster, self.pins, self.setting = program, cluster, pins, setting
        self.max_axes, self.recompute, self.given, self.progress = max_axes, recompute, given, progress
        self.few, self.method, self.simpler_within = False, "auto", SIMPLER_WITHIN
        self.effort = EFFORTS["default"]
        self._quick = recompute
        self.meshes: list[Mesh] = []
        self.candidates: list[Candidate] = []
        self.jointly: list[Candidate] = []
        self.refused: PlanError | None = None

    def keep_all(self, memory_bytes: int | None, best: Plan | None, must: bool) -> Found | None:
        """Everything kept; None where no mesh allows the pins. must: which is an error at once."""
        limit_s = best.predicted.step_s if best else inf
        try:
            return self.found(self.budget(memory_bytes), limit_s * (1 + self.simpler_within), self._quick)
        except PlanError as error:
            if must:
                raise
            self.refused = error
            return None

    def search(self, memory_bytes: int | None, best: Plan | None, found: Found) -> tuple[Plan | None, float]:
        """(the fastest that fits, `best` if none is faster; a bound on all of them). found: everything kept."""
        budget = self.budget(memory_bytes)
        limit_s = (best.predicted.step_s if best else inf) * (1 + self.simpler_within)
        if self.method not in (*ANYWHERE, "flat"):
            plan = method_search(self.first, self.program, budget, self.drafted, self.method)
            return plan, min(found.floors.values())
        bound_s = found.bound_s
        for _ in range(LESS_ROOM):
            plan = self.written(*found.best) if found.best else None
            over = plan.predicted.peak_bytes - budget if plan else 0
            if plan is None or over <= 0:
                best = plan or best
                break
            found = self.found(budget - over, limit_s, self._quick)
        if self.recompute and (found.best is None or found.tight):
            best, joint_s = self._jointly(budget, best, found)
            bound_s = min(bound_s, joint_s)
            if self._quick and (best is None or best.predicted.step_s > found.limit_s):
                self._quick = False
                more = self.found(budget, best.predicted.step_s if best else inf)
                if more.best or more.slower != found.slower:
                    return self.search(memory_bytes, best, more)
            best = best or min_memory_plan(self.first, budget, self.program, self.drafted, self.method)
        return best, bound_s

    def found(self, budget_bytes: int, limit_s: float = inf, quick: bool = False) -> Found:
        """Everything kept, on all meshes that the pins allow."""
        self.meshes = allowed_meshes(self.cluster, self.pins, self.max_axes)
        self.candidates = candidates_on(self.program, self.meshes, self.pins, self.setting, few=self.few)
        return search(self.candidates, budget_bytes, self.progress, limit_s, same=self.simpler_within, quick=quick)

    def _jointly(self, budget: int, best: Plan | None, found: Found) -> tuple[Plan | None, float]:
        """Sharding and recomputation where memory binds, on meshes of more than two axes for the most promising few."""
        known_s = best.predicted.step_s if best else float("inf")
        candidates = [one.below(found.slower.get(place)) for place, one in enumerate(self.candidates)]
        first = [candidates[place] for place in sorted(found.tight) if not candidates[place].later]
        later = sorted((found.floors[place], place) for place in found.tight if candidates[place].later)
        chosen = [candidates[place] for floor, place in later[:FEW] if floor < known_s]
        self.jointly = first + chosen
        best, bound_s = joint_search(
            self.jointly,
            self.program,
            budget,
            self.drafted,
            best,
            self.progress,
            flat=self.method == "flat",
            simpler_within=self.simpler_within,
            effort=self.effort,
        )
        return best, min([bound_s, *(floor for floor, _ in later[FEW:])])

    def written(self, chain: Chain, frontier: Frontier) -> Plan:
        return replace(assemble(self.program, self.cluster, chain, frontier), **self.given)

    def drafted(self, chain: Chain, frontier: Frontier) -> Plan:
        return replace(draft(self.program, self.cluster, chain, frontier), **self.given)

    def budget(self, memory_bytes: int | None) -> int:
        return _budget(self.cluster, memory_bytes)

    def anyway(self) -> tuple[Chain, Frontier] | None:
        """The fastest of the most micro-batches, whether it fits or not."""
        return anyway(self.candidates).best

    def refusal(self, memory_bytes: int | None, others: Sequence[Part]) -> PlanError:
        """Why there is no plan. others: that look for one in several stages."""
        if self.refused is not None:
            return self.refused
        budget = self.budget(memory_bytes)
        work = WorkBudget(len(self.program.segments))
        quick, slow = self._parts(work)
        parts = (*quick, *(counted_pipeline(one, work) for one in others), *slow)
        least = minimum_budget(parts, budget, self._known(budget), len(self.program.segments), work)
        if self.method not in ANYWHERE:
            return no_room(self.method, budget, least)
        tight = partial(tight_candidates, self.program, pins=self.pins, setting=self.setting)
        return does_not_fit(self.cluster, budget, least, tight, pinned_devices(self.pins))

    def _known(self, budget: int) -> MemoryNeeded:
        """Bytes in which a plan should fit that saves memory as it is to be saved."""
        found = [least_of(one) for one in self.first] if self.method in ANYWHERE else []
        if self.recompute:
            given = self.program, self.drafted, self.method, budget
            found += [least_by_method(one, *given) for one in self.first]
        return min(found)

    def _parts(self, work: WorkBudget) -> tuple[list[Part], list[Part]]:
        """(what `search` does, but only until something fits; what of it takes long)."""
        given: dict[str, Any] = {"program": self.program, "assemble": self.drafted, "work": work}
        dearest = partial(feasible_min_memory, self.first, method=self.method, **given)
        if self.method not in (*ANYWHERE, "flat"):
            return [dearest], [partial(feasible_swept, self.first, method=self.method, **given)]
        kept = partial(feasible_kept, self.candidates)
        if not self.recompute:
            return [kept], []
        jointly = partial(feasible_jointly, self.jointly, flat=self.method == "flat", **given)
        swept = partial(feasible_swept, self.jointly, method=self.method, **given)
        return [dearest, kept], [jointly, swept]

    @property
    def first(self) -> list[Candidate]:
        """Meshes of few axes, where there are any."""
        return [one for one in self.candidates if not one.later] or self.candidates
