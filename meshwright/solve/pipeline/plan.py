"""From stages that were chosen to a Plan: devices, layouts, weights and their tied replicas, links, prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.caches import CACHES
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, Mesh
from meshwright.plan import Choice, ParameterPlan, Plan, Prediction, Stage, StageLink, StagePrediction
from meshwright.plan.cutting import cut_batch
from meshwright.price.parameter import Setting
from meshwright.schedule import Pipeline, in_flight_of, lists, plan_pipeline
from meshwright.schedule.of_plan import plan_order, with_tasks
from meshwright.simulate import Costs, SegmentCost, Timeline, simulate
from meshwright.solve.intra.inputs import input_layouts, input_plans
from meshwright.solve.pipeline.account import communication_s, stage_traffic
from meshwright.solve.pipeline.costs import plan_costs, stage_costs
from meshwright.solve.pipeline.meshes import StageMesh, Wires, mesh_on, placed, stand_in
from meshwright.solve.pipeline.offers import Offer, parameter_of
from meshwright.solve.roles import name_axes

MOST_LISTED = 128
"""Ranks up to which a plan lists what each stage communicates."""
LESS = 1e-6
"""What a relay has to save: sending directly is simpler."""
_last: list[tuple[Plan, Program, Timeline]] = CACHES.own([])
NOTHING = Prediction(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Part:
    """A run of segments on physical stage `stage`, as a chain on a class of submeshes has it."""

    first: int
    end: int
    stage: int
    mesh: StageMesh
    offer: Offer


def placed_meshes(cluster: Cluster, parts: Sequence[Part]) -> list[Mesh]:
    """A mesh on devices of its own for every physical stage."""
    classes = {part.stage: part.mesh for part in reversed(parts)}
    ranks = placed(cluster, tuple(classes[stage].place for stage in range(len(classes))))
    return [mesh_on(cluster, classes[stage].mesh.sizes, own) for stage, own in enumerate(ranks)]


def pipeline_plan(
    program: Program, cluster: Cluster, parts: Sequence[Part], schedule: str, setting: Setting, wires: Wires
) -> Plan:
    """Model reference, memory limit, pins and prediction are yet to come."""
    small = program.at_batch(cut_batch(program.batch, setting.microbatches)[0])
    meshes = placed_meshes(cluster, parts)
    made = [part.offer.points[index].point.choice for part in parts for index in range(part.first, part.end)]
    parameters = _parameters(program, parts)
    stages = []
    known: dict[object, tuple[dict[str, str], Choice]] = {}
    for part in parts:
        mesh, own = meshes[part.stage], made[part.first : part.end]
        pairs = zip(program.segments[part.first : part.end], own, strict=True)
        key = (stand_in(mesh), frozenset((segment.graph, id(choice), segment.commons) for segment, choice in pairs))
        if key not in known:
            known[key] = input_layouts(small, stand_in(mesh), own, part.first)
        inputs, prologue = known[key]
        stages.append(Stage(part.first, part.end, mesh, inputs, prologue, _tied_replicas(program, part)))
    choices: list[Choice] = []
    segments = []
    numbers: dict[str, int] = {}
    for choice in made:
        text = repr(choice)
        if text not in numbers:
            numbers[text] = len(choices)
            choices.append(choice)
        segments.append(numbers[text])
    plan = Plan(
        fingerprint=program.fingerprint(),
        model="",
        batch=program.batch,
        cluster=cluster.name,
        stages=tuple(stages),
        inputs=input_plans(program),
        choices=tuple(choices),
        segments=tuple(segments),
        parameters=parameters,
        predicted=NOTHING,
        microbatches=setting.microbatches,
        schedule=schedule,
        precision=setting.precision,
        optimizer=setting.optimizer,
    )
    return name_axes(program, replace(plan, links=stage_links(plan, program, wires)))


def _parameters(program: Program, parts: Sequence[Part]) -> dict[str, ParameterPlan]:
    """As the first stage that reads each has it."""
    found: dict[str, ParameterPlan] = {}
    for part in parts:
        for index in range(part.first, part.end):
            for name in program.segments[index].params:
                if name not in found:
                    found[name] = parameter_of(program, part.offer, name, index)
    return {parameter.name: found[parameter.name] for parameter in program.parameters}


def _tied_replicas(program: Program, part: Part) -> dict[str, str]:
    """Weights that live with an earlier run, be it on the same devices, as under interleaving."""
    found: dict[str, str] = {}
    for index in range(part.first, part.end):
        for name in program.segments[index].params:
            if program.uses_of(name)[0] < part.first:
                found.setdefault(name, parameter_of(program, part.offer, name, index).compute)
    return found


def stage_links(plan: Plan, program: Program, wires: Wires) -> tuple[StageLink, ...]:
    """Both ways between all stages that exchange something, routed via stages or not."""
    direct = plan_pipeline(plan, program)
    routed = replace(direct, routed_via_stages=frozenset(skipping(direct)))
    pairs = {(hop.source, hop.target) for one in (direct, routed) for hop in one.hops()}
    for stage in plan.stages:
        for name in stage.tied_replicas:
            pairs.add((plan.stage_at(plan.home(program, name).mesh.ranks[0]), plan.stage_at(stage.mesh.ranks[0])))
    found = []
    groups = plan.groups
    for source, target in sorted({(a, b) for one in pairs for a, b in (one, one[::-1]) if a != b}):
        rate = wires.between(groups[source][0].mesh.ranks, groups[target][0].mesh.ranks)
        found.append(StageLink(source, target, rate.latency_s, rate.bandwidth))
    return tuple(found)


def skipping(pipeline: Pipeline) -> list[int]:
    """Segments whose values some stage reads that does not come right after theirs."""
    stage_of = [run.stage for run in pipeline.runs for _ in run.segments]
    found: dict[int, bool] = {}
    for producer, reader in pipeline.all_reads():
        way = dict.fromkeys(stage_of[producer : reader + 1])
        found[producer] = found.get(producer, False) or len(way) > 2
    return [producer for producer, far in found.items() if far]


def route_far_values(plan: Plan, program: Program) -> Plan:
    """The plan, with its prediction, in which values that skip stages go from stage to stage where that is faster."""
    best = plan
    for segment in skipping(plan_pipeline(plan, program)):
        found, _ = predicted(replace(best, routed_via_stages=(*best.routed_via_stages, segment)), program, exact=False)
        if found.predicted.step_s < best.predicted.step_s * (1 - LESS):
            best = found
    return best


def predicted(plan: Plan, program: Program, exact: bool = True) -> tuple[Plan, Timeline]:
    """The plan with its prediction, made by the simulator from the plan alone. exact: bytes by traced pairs, which
    searching does without. What was predicted exactly last is remembered."""
    for known, of, played in _last if exact else ():
        if of is program and _as_asked(known, plan) == plan:
            return _as_asked(known, plan), played
    pipeline = plan_pipeline(plan, program)
    costs = plan_costs(plan, program, pipeline, exact)
    stages = _stage_predictions(plan, costs)
    early = with_tasks(plan.with_prediction(stages=stages), pipeline)
    timeline = simulate(lists(pipeline, plan_order(early, pipeline)), costs, reads=pipeline.reads, spans=False)
    found = early.with_prediction(**_figures(early, costs, timeline))
    if exact:
        _last[:] = [(found, program, timeline)]
    return found, timeline


def _as_asked(plan: Plan, by: Plan) -> Plan:
    """The plan under the model, budget and pins of another: its prediction depends on none of them."""
    return replace(plan, model=by.model, memory_bytes=by.memory_bytes, pins=by.pins, cluster=by.cluster)


def held_bytes(plan: Plan, program: Program) -> list[int]:
    """By physical stage, roughly and without playing it: its state, and what its micro-batches in flight keep."""
    own = [stage_costs(plan, program, number, exact=False) for number in range(len(plan.stages))]
    costs = Costs([cost for run in own for cost in run], {})
    stages = _stage_predictions(plan, costs)
    return [one.static_bytes + one.resident_bytes * one.in_flight // len(one.forward_s) for one in stages]


def fully_predicted(plan: Plan, program: Program) -> Plan:
    """Exactly, with what each stage communicates, and what that of the busiest takes."""
    plan, _ = predicted(plan, program)
    if plan.world_size > MOST_LISTED:
        return plan
    listed = [stage_traffic(plan, program, number) for number in range(len(plan.groups))]
    stages = [replace(stage, traffic=own) for stage, own in zip(plan.predicted.stages, listed, strict=True)]
    busiest = max(range(len(stages)), key=lambda i: stages[i].busy_s)
    spent_s = communication_s(plan, busiest, listed[busiest])
    return plan.with_prediction(stages=tuple(stages), communication_s=spent_s)


def _stage_predictions(plan: Plan, costs: Costs) -> tuple[StagePrediction, ...]:
    groups, found = plan.groups, []
    for number, group in enumerate(groups):
        own = [[costs.segments[i] for i in stage.segments] for stage in group]
        every = [cost for run in own for cost in run]
        sends = [_send_s(plan, costs, stage) for stage in group]
        known = plan.predicted.stages[number].in_flight if plan.predicted.stages else None
        flight = known or in_flight_of(plan.schedule, number, len(groups), plan.microbatches, len(group))
        found.append(
            StagePrediction(
                tuple(sum(cost.forward_s for cost in run) for run in own),
                tuple(sum(cost.backward_input_s for cost in run) for run in own),
                tuple(sum(cost.backward_weight_s for cost in run) for run in own),
                tuple(sends),
                flight,
                sum(cost.static_bytes for cost in every),
                sum(cost.resident_bytes for cost in every),
                max(max(cost.forward_transient_bytes, cost.backward_transient_bytes) for cost in every),
                0,
                0.0,
                0.0,
                0.0,
            )
        )
    return tuple(found)


def _send_s(plan: Plan, costs: Costs, stage: Stage) -> float:
    own = plan.stage_at(stage.mesh.ranks[0])
    return sum(
        transfer.seconds + transfer.latency_s
        for (segment, source, target), transfer in costs.transfers.items()
        if segment in stage.segments and source == own and target != own
    )


def _figures(plan: Plan, costs: Costs, timeline: Timeline) -> dict[str, object]:
    """Seconds of the busiest stage, bytes of the fullest one."""
    stages = tuple(
        replace(
            stage, peak_bytes=times.peak_bytes, busy_s=times.busy_s, exposed_s=times.exposed_s, bubble_s=times.bubble_s
        )
        for stage, times in zip(plan.predicted.stages, timeline.stages, strict=True)
    )
    busiest = max(range(len(stages)), key=lambda i: stages[i].busy_s)
    fullest = max(stages, key=lambda stage: stage.peak_bytes)
    own: list[SegmentCost] = [costs.segments[i] for stage in plan.groups[busiest] for i in stage.segments]
    micro, static = plan.microbatches, min(fullest.static_bytes, fullest.peak_bytes)
    held = fullest.resident_bytes * fullest.in_flight // len(fullest.forward_s)
    held = min(held, fullest.peak_bytes - static)  # gradients come when some of it is gone: of the peak, the parts
    return {
        "step_s": timeline.step_s,
        "forward_s": micro * sum(cost.forward_s for cost in own),
        "backward_s": micro * sum(cost.backward_s for cost in own),
        "parameters_s": sum(cost.first_s + cost.last_s for cost in own),
        "optimizer_s": sum(cost.step_s for cost in own),
        "static_bytes": static,
        "resident_bytes": held,
        "transient_bytes": fullest.peak_bytes - static - held,
        "peak_bytes": fullest.peak_bytes,
        "stages": stages,
        "bubble": timeline.bubble,
    }
