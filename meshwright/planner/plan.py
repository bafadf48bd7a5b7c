"""From a Program and a cluster to a Plan: every mesh, every number of micro-batches, the best chain, in writing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from meshwright.capture.coupling.parts import check_in_parts
from meshwright.capture.lock import PLANNING
from meshwright.capture.optimizer import check_optimizer
from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError
from meshwright.pins.check import check_pins
from meshwright.pins.methods import ANYWHERE, pinned_method
from meshwright.pins.offload import pinned_offload
from meshwright.pins.parts import pin_parts
from meshwright.pins.stages import PipelinePins, pipeline_pins
from meshwright.plan import Plan
from meshwright.plan.recent import remember
from meshwright.plan.search_log import INTERRUPTED
from meshwright.plan.validate import preset_named
from meshwright.planner.axis_names import name_axes
from meshwright.planner.compiled import compiled_plan
from meshwright.planner.effort import MOST_UNITS, SIMPLER_WITHIN, check_part, effort_of, headroom_of
from meshwright.planner.infeasible.feasibility import (
    feasible_pipeline,
)
from meshwright.planner.infeasible.min_memory import (
    minimum_pipeline_budget,
)
from meshwright.planner.interrupt import STOP
from meshwright.planner.memory.offload import OFFLOADING, check_may_offload, offloading
from meshwright.planner.model_pins import check_axes, check_storage
from meshwright.planner.one_device import is_for_one_device, one_device_search
from meshwright.planner.one_stage import ROUNDING, OneStageSearch
from meshwright.planner.pipeline.pins import no_pipeline
from meshwright.planner.pipeline.search import PipelineSearch
from meshwright.planner.request import MOST_DEVICES, PlanRequest
from meshwright.planner.search_log import Progress, SearchRecorder
from meshwright.predict import predicted
from meshwright.price.parameter import Setting
from meshwright.rules import rule_coverage, warn_of_fallbacks


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
    looking: Progress | None = None,
    stage_method: str = "auto",
    simpler_within: float = SIMPLER_WITHIN,
    effort: str = "default",
    gap: float = 0.0,
    headroom: float | None = None,
) -> Plan:
    """The fastest plan that fits, over all meshes of up to `max_axes` axes of the cluster's devices and all pipelines.

    On a mesh of one or two axes everything is looked at; on one of more, all but two of them are given to samples.
    `program` is captured in the dtype it computes in: bfloat16 for `bf16` and `mixed`. fit: refuse where none fits;
    otherwise the fastest of the most micro-batches is the answer then. recompute: where memory binds, activations may
    be recomputed in backward. stage_method: how pipelines' stages are searched for, `auto` or one of the survey's.
    compile: segments are compiled by inductor, and priced so. simpler_within: of plans whose steps differ by no more
    than this part of the fastest the simplest is taken; 0: the fastest. effort: how much is searched, `fast`, `default`
    or `proof`. gap: the search ends once its plan is proven to be within this part of the fastest.
    headroom: part of each device that is left free where `memory_bytes` is None; HEADROOM unless given.
    progress, looking: are called with a line for every better plan, and for every part of the search.
    """
    check_part("simpler_within", simpler_within)
    check_part("gap", gap)
    if cluster.device_count > MOST_DEVICES:
        raise PlanError(
            f"a cluster of {cluster.device_count:,} devices",
            f"at most {MOST_DEVICES:,}, beyond which planning takes no known time",
            "plan for a part of it, and add data parallel replicas of that",
        )
    request = PlanRequest(
        program=program,
        cluster=cluster,
        model=model,
        memory_bytes=memory_bytes,
        setting=Setting(optimizer, precision, compile=compile),
        pins=tuple(dict.fromkeys(pins)),
        max_axes=max_axes,
        fit=fit,
        recompute=recompute,
        stage_method=stage_method,
        simpler_within=simpler_within,
        effort=effort_of(effort),
        gap=gap,
        headroom=headroom_of(memory_bytes, headroom, max(device.usable_bytes for device in cluster.devices)),
    )
    log = SearchRecorder(progress, looking, STOP)
    with PLANNING, STOP.searching():
        warn_of_fallbacks(program)
        plan = _compiled(request, log) if compile and cluster.device_count > 1 else _planned(request, log)
        if STOP.asked:
            log.stopped("the search", INTERRUPTED)
        return replace(plan, search_log=log.log())


def look(request: PlanRequest) -> Plan:
    """The fastest plan that fits; PlanError at once where none does, without what would."""
    with PLANNING:
        return _planned(request, SearchRecorder(), only_look=True)


def _compiled(request: PlanRequest, log: SearchRecorder) -> Plan:
    """On several devices: what the layers of one stage keep is decided once more by compiled pairs."""
    check_pins(request.pins, request.cluster, request.program.batch)
    method = pinned_method(request.pins)[0] if request.recompute else "keep"

    def searched(memory_bytes: int | None) -> Plan:
        return _planned(replace(request, memory_bytes=memory_bytes), log)

    return compiled_plan(searched, request.program, request.memory_bytes, request.budget_bytes, method)


def _planned(request: PlanRequest, log: SearchRecorder, only_look: bool = False) -> Plan:
    """only_look: where nothing fits, say so without looking for what would."""
    program, cluster, memory_bytes, texts = request.program, request.cluster, request.memory_bytes, request.pins
    check_optimizer(request.setting.optimizer)
    check_pins(texts, cluster, program.batch)
    check_storage(texts, {one.name: one.type.sizes for one in program.parameters})
    check_axes(texts, program)
    for name, number in map(pin_parts, texts):
        if name in ("microbatch", "microbatches") and number.isdigit():
            check_in_parts(program, int(number))
    method, rest = pinned_method(texts)
    offload, rest = pinned_offload(rest)
    if offload.auto:
        check_may_offload(cluster)
    elif offload.kind:
        request = replace(request, setting=offloading(request.setting, program, cluster, offload))
    recompute = request.recompute and method != "keep"
    asked = pipeline_pins(rest)
    alone = asked.one_stage or (method not in ANYWHERE and not asked.pipeline)
    given: dict[str, Any] = {
        "model": request.model,
        "memory_bytes": memory_bytes,
        "headroom": request.headroom,
        "pins": texts,
        "cluster": _name(cluster),
        "compile": request.setting.compile,
        "answers": program.answers,
        "form": program.form,
    }
    if is_for_one_device(cluster, rest):
        one = one_device_search(request, asked.rest, method if recompute else "keep", log, hosts=offload.auto)
        return _finished(replace(one, **given), program)
    whole = OneStageSearch(request, asked.rest, method, given, log)
    in_several = (program, cluster, memory_bytes, request.setting, asked, log, recompute, request.stage_method)
    staged = None
    if request.fit and not alone:
        staged = PipelineSearch(*in_several, exact=False, gap=request.gap, headroom=request.headroom, remat=method)
    early = cluster.device_count <= MOST_UNITS and not asked.pipeline
    must = alone or not request.fit
    if request.fit and whole.holds_nothing():  # no stages, shards or recomputation help: refused without a search
        whole.prepare(must)
        plan, bound_s = None, inf
    else:
        plan, bound_s = _searched(whole, staged, early, must, asked)
    plan = replace(plan, **given) if plan else None
    if plan is None and not request.fit:
        chosen = whole.anyway()
        plan = whole.written(*chosen) if chosen else None
    if plan is None and only_look:
        raise PlanError("no plan fits", "more memory")
    if plan is None:
        hosted = _hosted(request, log) if offload.auto else None
        if hosted is not None:
            return hosted
        raise _refusal(request, whole, asked, alone)
    plan = predicted(plan, program) if len(plan.stages) > 1 else plan
    step_s = plan.predicted.step_s
    gap = 1.0 - bound_s / step_s if step_s else 0.0
    gap = 1.0 if STOP.asked else gap if gap > ROUNDING else 0.0  # 1: no bound is known
    return _finished(plan.with_prediction(gap=gap), program)


def _hosted(request: PlanRequest, log: SearchRecorder) -> Plan | None:
    """Where nothing else fits on several devices: with all optimizer state on the host, or with all weights too."""
    _, pins = pinned_offload(request.pins)
    for word in OFFLOADING:
        try:
            found = _planned(replace(request, pins=(*pins, f"offload={word}")), log, only_look=True)
        except PlanError:
            continue
        return replace(found, pins=request.pins).with_prediction(gap=1.0)  # of other fractions no bound is known
    return None


def _refusal(request: PlanRequest, whole: OneStageSearch, asked: PipelinePins, alone: bool) -> PlanError:
    """Why nothing fits, and what would. alone: no pipeline was searched for."""
    cluster, budget, segments = request.cluster, whole.budget, len(request.program.segments)
    in_stages = partial(
        feasible_pipeline,
        request.program,
        cluster,
        setting=request.setting,
        asked=asked,
        recompute=whole.recompute,
        method=request.stage_method,
        remat=whole.method,
    )
    if asked.pipeline:
        refused = max(budget, whole.too_few_bytes)
        return no_pipeline(asked, cluster, budget, lambda: minimum_pipeline_budget(in_stages, refused, segments))
    return whole.refusal(() if alone or cluster.device_count < 2 else (in_stages,))


def _finished(plan: Plan, program: Program) -> Plan:
    """With its axes named after what they do, what gave each op its rule, and the sizes of weights."""
    rules: dict[str, tuple[str, ...]] = {tier: targets for tier, targets in rule_coverage(program).items() if targets}
    named = replace(name_axes(program, plan), rules=rules, weight_bytes=program.weight_bytes())
    named.verify()
    remember(named.fingerprint, program)
    return named


def _searched(
    whole: OneStageSearch,
    staged: PipelineSearch | None,
    early: bool,
    must: bool,
    asked: PipelinePins,
) -> tuple[Plan | None, float]:
    """(the fastest plan of one stage or several, a bound on all). early: one stage before pipelines, which its best
    prunes; where nothing fits with all kept, after a first look at them."""
    plan = staged.finish() if staged and not early else None
    bound_s = inf
    if not asked.pipeline and not (STOP.asked and plan):
        kept = whole.keep_all(plan, must)
        if staged and early and (kept is None or kept.best is None):
            plan = staged.begin()
        plan, bound_s = whole.search(plan, kept) if kept else (plan, inf)
        if staged and early and not (STOP.asked and plan):
            alone = plan is not None and len(plan.stages) == 1
            incumbent_s = plan.predicted.step_s * (1 - max(whole.simpler_within, whole.gap)) if plan and alone else inf
            plan = staged.finish(incumbent_s) or plan
    if staged and plan and not STOP.asked:
        bound_s = min(bound_s, staged.bound_s(min(bound_s, plan.predicted.step_s)))
    return plan, bound_s


def _name(cluster: Cluster) -> str:
    """As a plan has it: one that is called as a preset and has other devices is not taken for it later."""
    preset = preset_named(cluster.name)
    changed = preset is not None and preset.device_names() != cluster.device_names()
    return f"{cluster.name} (changed)" if changed else cluster.name
