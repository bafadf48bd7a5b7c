"""The planner: from a Program and a cluster to the fastest Plan that fits.

Three searches share the work, each over micro-batch counts and rematerialisation as well. `one_device` has nothing to
shard. `one_stage` shards the whole chain of segments over one mesh of all devices. `pipeline` cuts the chain into
stages. On small clusters the incumbent of `one_stage` prunes pipelines, on large ones the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import inf

from meshwright.capture.coupling.parts import check_in_parts
from meshwright.capture.lock import PLANNING
from meshwright.capture.optimizer import check_optimizer
from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError
from meshwright.pins.check import MOST_AXES, check_pins
from meshwright.pins.methods import ANYWHERE, pinned_method
from meshwright.pins.offload import pinned_offload
from meshwright.pins.parts import pin_parts
from meshwright.pins.stages import PipelinePins, pipeline_pins
from meshwright.plan import Plan
from meshwright.plan.recent import remember
from meshwright.plan.search_log import INTERRUPTED, SEARCH, asked_for
from meshwright.planner.axis_names import name_axes
from meshwright.planner.compiled import compiled_plan
from meshwright.planner.effort import MOST_UNITS, SIMPLER_WITHIN, check_part, effort_of, headroom_of
from meshwright.planner.infeasible.feasibility import feasible_pipeline
from meshwright.planner.infeasible.min_memory import ON_HOST, minimum_pipeline_budget
from meshwright.planner.infeasible.refusals import refuse_pipeline
from meshwright.planner.interrupt import STOP
from meshwright.planner.memory.offload import OFFLOADING, check_may_offload, offloading
from meshwright.planner.model_pins import check_axes, check_storage
from meshwright.planner.one_device import is_for_one_device, one_device_search
from meshwright.planner.one_stage import ROUNDING, OneStageSearch
from meshwright.planner.pipeline.search import PipelineSearch, has_pipelines
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
    max_axes: int = MOST_AXES,
    fit: bool = True,
    recompute: bool = True,
    on_incumbent: Progress | None = None,
    on_node: Progress | None = None,
    simpler_within: float = SIMPLER_WITHIN,
    effort: str = "default",
    gap: float = 0.0,
    headroom: float | None = None,
) -> Plan:
    """The fastest plan that fits, over all meshes of the cluster's devices and all pipelines.

    Meshes of one or two axes are searched in full. A mesh of three gives all but two of its axes to samples.

    program: captured in the dtype it computes in, which is bfloat16 for `bf16` and `mixed`.
    memory_bytes: limit per device; the device's own unless given.
    compile: segments are compiled by inductor, and priced so.
    fit: refuse where nothing fits; otherwise return the fastest plan of the most micro-batches.
    recompute: activations may be recomputed in backward where memory binds.
    on_incumbent: called with a line of text for every better plan.
    on_node: called with the name of every node of the search.
    simpler_within: the simplest of all plans within this part of the fastest step is taken; 0: the fastest.
    effort: how much is searched: `fast`, `default` or `proof`.
    gap: the search ends once its plan is proven to be within this part of the fastest.
    headroom: part of each device that is left free where `memory_bytes` is None; HEADROOM unless given.
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
        simpler_within=simpler_within,
        effort=effort_of(effort),
        gap=gap,
        headroom=headroom_of(memory_bytes, headroom, max(device.usable_bytes for device in cluster.devices)),
    )
    log = SearchRecorder(on_incumbent, on_node, STOP)
    with PLANNING, STOP.searching():
        warn_of_fallbacks(program)
        plan = _compiled(request, log) if compile and cluster.device_count > 1 else _plan(request, log)
        if STOP.requested:
            log.stopped(SEARCH, INTERRUPTED)
        proven = plan.predicted.gap
        if gap and proven > gap + ROUNDING:
            log.stopped(SEARCH, asked_for(gap, proven))
        return replace(plan, search_log=log.log())


def feasible_plan(request: PlanRequest) -> Plan:
    """The fastest plan that fits. The PlanError where none does names no memory that would do, and so comes at once."""
    with PLANNING:
        return _plan(request, SearchRecorder(), feasible_only=True)


def _compiled(request: PlanRequest, log: SearchRecorder) -> Plan:
    """A compiled plan for several devices: its rematerialisation is chosen again on compiled pairs."""
    check_pins(request.pins, request.cluster, request.program.batch)
    method = pinned_method(request.pins)[0] if request.recompute else "keep"

    def search(memory_bytes: int | None) -> Plan:
        return _plan(replace(request, memory_bytes=memory_bytes), log)

    return compiled_plan(search, request.program, request.memory_bytes, request.budget_bytes, method)


def _plan(request: PlanRequest, log: SearchRecorder, feasible_only: bool = False) -> Plan:
    """feasible_only: a refusal does not search for the memory that would do."""
    program, cluster = request.program, request.cluster
    _check(request)
    method, rest = pinned_method(request.pins)
    offload, rest = pinned_offload(rest)
    if offload.auto:
        check_may_offload(cluster)
    elif offload.kind:
        request = replace(request, setting=offloading(request.setting, program, cluster, offload))
    recompute = request.recompute and method != "keep"
    pins = pipeline_pins(rest)
    if is_for_one_device(cluster, rest):
        one = one_device_search(request, pins.rest, method if recompute else "keep", log, may_offload=offload.auto)
        return _finished(replace(one, **request.plan_fields), program)
    one_stage = OneStageSearch(request, pins.rest, method, log)
    pipelines = None
    no_pipelines = not has_pipelines(program, cluster, pins) or (method not in ANYWHERE and not pins.pipeline)
    if request.fit and not no_pipelines:
        pipelines = PipelineSearch(
            program,
            cluster,
            request.memory_bytes,
            request.setting,
            pins,
            log,
            recompute,
            exact=False,
            gap=request.gap,
            headroom=request.headroom,
            method=method,
        )
    strict = no_pipelines or not request.fit
    if request.fit and one_stage.state_exceeds_memory():
        one_stage.prepare(strict)
        plan, bound_s = None, inf
    else:
        plan, bound_s = _search(one_stage, pipelines, strict, pins)
    plan = replace(plan, **request.plan_fields) if plan else None
    if plan is None and not request.fit:
        plan = one_stage.plan_over_budget()
    if plan is None and feasible_only:
        raise PlanError("no plan fits", "more memory")
    if plan is None and offload.auto:
        return _offloaded(request, log)
    if plan is None:
        raise _refusal(request, one_stage, pins, no_pipelines)
    plan = predicted(plan, program) if len(plan.stages) > 1 else plan
    step_s = plan.predicted.step_s
    gap = 1.0 - bound_s / step_s if step_s else 0.0
    gap = 1.0 if STOP.requested else gap if gap > ROUNDING else 0.0  # 1: no bound is known
    return _finished(plan.with_prediction(gap=gap), program)


def _check(request: PlanRequest) -> None:
    """Refuses an unknown optimizer, and pins that the cluster or the model cannot have."""
    program = request.program
    check_optimizer(request.setting.optimizer)
    check_pins(request.pins, request.cluster, program.batch)
    check_storage(request.pins, {one.name: one.type.sizes for one in program.parameters})
    check_axes(request.pins, program)
    for name, number in map(pin_parts, request.pins):
        if name in ("microbatch", "microbatches") and number.isdigit():
            check_in_parts(program, int(number))


def _search(
    one_stage: OneStageSearch, pipelines: PipelineSearch | None, strict: bool, pins: PipelinePins
) -> tuple[Plan | None, float]:
    """(the fastest plan of one or more stages, a lower bound on the step of all of them).

    Plans of one stage are searched before pipelines on few devices. Where nothing fits there with everything kept, a
    first pipeline is found in between as an incumbent.
    strict: pins that no mesh allows are an error.
    """
    one_stage_first = one_stage.request.cluster.device_count <= MOST_UNITS and not pins.pipeline
    plan, bound_s = pipelines.finish() if pipelines and not one_stage_first else None, inf
    if not pins.pipeline and not (STOP.requested and plan):
        kept = one_stage.keep_all(plan, strict)
        if pipelines and one_stage_first and (kept is None or kept.best is None):
            plan, one_stage.elsewhere = pipelines.begin(), pipelines.go_on
        plan, bound_s = one_stage.search(plan, kept) if kept else (plan, inf)
        if pipelines and one_stage_first and not (STOP.requested and plan):
            is_one_stage = plan is not None and len(plan.stages) == 1
            better = 1 - max(one_stage.simpler_within, one_stage.request.gap)
            incumbent_s = plan.predicted.step_s * better if plan and is_one_stage else inf
            plan = pipelines.finish(incumbent_s) or plan
    if pipelines and plan and not STOP.requested:
        bound_s = min(bound_s, pipelines.bound_s(min(bound_s, plan.predicted.step_s)))
    return plan, bound_s


def _offloaded(request: PlanRequest, log: SearchRecorder) -> Plan:
    """A plan for several devices with all optimizer states on the host, or with all weights too where that is not
    enough. The refusal is that of all weights."""
    _, pins = pinned_offload(request.pins)
    *others, most = OFFLOADING
    for kind in others:
        try:
            found = _plan_offloading(request, pins, kind, log, feasible_only=True)
            break
        except PlanError:
            continue
    else:
        found = _plan_offloading(request, pins, most, log)
    return replace(found, pins=request.pins).with_prediction(gap=1.0)  # of other fractions no bound is known


def _plan_offloading(
    request: PlanRequest, pins: tuple[str, ...], kind: str, log: SearchRecorder, feasible_only: bool = False
) -> Plan:
    """With all of one kind on the host, as the nodes of the search say."""
    pin = f"offload={kind}"
    log.where = ON_HOST[pinned_offload((pin,))[0].kind]
    try:
        return _plan(replace(request, pins=(*pins, pin)), log, feasible_only)
    finally:
        log.where = ""


def _refusal(request: PlanRequest, one_stage: OneStageSearch, pins: PipelinePins, no_pipelines: bool) -> PlanError:
    """Why nothing fits, and the memory that would do. no_pipelines: none were searched."""
    cluster, budget = request.cluster, one_stage.budget
    test = partial(
        feasible_pipeline,
        request.program,
        cluster,
        setting=request.setting,
        pins=pins,
        recompute=one_stage.recompute,
        method=one_stage.method,
    )
    if not pins.pipeline:
        return one_stage.refusal(() if no_pipelines else (test,))
    refused = max(budget, one_stage.too_few_bytes)
    needed = minimum_pipeline_budget(test, refused, len(request.program.segments))
    needed = needed.offloading(request.setting.offload) if needed else None
    return refuse_pipeline(pins, cluster, budget, needed)


def _finished(plan: Plan, program: Program) -> Plan:
    """The plan with named mesh axes, the origin of each op's rule, and the sizes of the weights."""
    rules: dict[str, tuple[str, ...]] = {tier: targets for tier, targets in rule_coverage(program).items() if targets}
    named = replace(name_axes(program, plan), rules=rules, weight_bytes=program.weight_bytes())
    named.verify()
    remember(named.fingerprint, program)
    return named
