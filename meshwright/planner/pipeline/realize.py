"""From stages that were chosen to a Plan: devices, layouts, weights and their tied replicas, links, prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.capture.program import Program
from meshwright.cluster import Cluster, Mesh
from meshwright.cluster.enumerate import per_host
from meshwright.cutting import cut_batch
from meshwright.plan import Choice, ParameterPlan, Plan, Stage, StageLink
from meshwright.planner.axis_names import name_axes
from meshwright.planner.effort import CLOSE
from meshwright.planner.pipeline.meshes import StageMesh, SubmeshLinks, mesh_on, placed
from meshwright.planner.pipeline.sharded_chains import ShardedChain, parameter_of
from meshwright.planner.space.input_layouts import input_layouts, input_plans
from meshwright.predict.fast import NOTHING
from meshwright.predict.pieces import stand_in
from meshwright.predict.step import pipeline_predicted
from meshwright.price.parameter import Setting
from meshwright.schedule import Pipeline, plan_pipeline


@dataclass(frozen=True, slots=True)
class Part:
    """A run of segments on physical stage `stage`, as a chain on a class of submeshes has it."""

    first: int
    end: int
    stage: int
    mesh: StageMesh
    sharded: ShardedChain


def placed_meshes(cluster: Cluster, parts: Sequence[Part]) -> list[Mesh]:
    """A mesh on devices of its own for every physical stage."""
    classes = {part.stage: part.mesh for part in reversed(parts)}
    ranks = placed(cluster, tuple(classes[stage].place for stage in range(len(classes))))
    return [mesh_on(cluster, classes[stage].mesh.sizes, own) for stage, own in enumerate(ranks)]


def pipeline_plan(
    program: Program,
    cluster: Cluster,
    parts: Sequence[Part],
    schedule: str,
    setting: Setting,
    submesh_links: SubmeshLinks,
) -> Plan:
    """Model reference, memory limit, pins and prediction are yet to come."""
    small = program.at_batch(cut_batch(program.batch, setting.microbatches)[0])
    meshes = placed_meshes(cluster, parts)
    made = [part.sharded.points[index].point.choice for part in parts for index in range(part.first, part.end)]
    parameters = _parameters(program, parts)
    stages = []
    known: dict[object, tuple[dict[str, str], Choice]] = {}
    for part in parts:
        mesh, own = meshes[part.stage], made[part.first : part.end]
        pairs = zip(program.segments[part.first : part.end], own, strict=True)
        key = (
            stand_in(mesh),
            frozenset((segment.graph, id(choice), segment.shared_values) for segment, choice in pairs),
        )
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
        per_host=per_host(cluster),
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
        compile=setting.compile,
    )
    return name_axes(program, replace(plan, links=stage_links(plan, program, submesh_links)))


def _parameters(program: Program, parts: Sequence[Part]) -> dict[str, ParameterPlan]:
    """As the first stage that reads each has it."""
    found: dict[str, ParameterPlan] = {}
    for part in parts:
        for index in range(part.first, part.end):
            for name in program.segments[index].params:
                if name not in found:
                    found[name] = parameter_of(program, part.sharded, name, index)
    return {parameter.name: found[parameter.name] for parameter in program.parameters}


def _tied_replicas(program: Program, part: Part) -> dict[str, str]:
    """Weights that live with an earlier run, be it on the same devices, as under interleaving."""
    found: dict[str, str] = {}
    for index in range(part.first, part.end):
        for name in program.segments[index].params:
            if program.uses_of(name)[0] < part.first:
                found.setdefault(name, parameter_of(program, part.sharded, name, index).compute)
    return found


def stage_links(plan: Plan, program: Program, submesh_links: SubmeshLinks) -> tuple[StageLink, ...]:
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
        rate = submesh_links.between(groups[source][0].mesh.ranks, groups[target][0].mesh.ranks)
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
        found, _ = pipeline_predicted(
            replace(best, routed_via_stages=(*best.routed_via_stages, segment)), program, exact=False
        )
        if found.predicted.step_s < best.predicted.step_s * (1 - CLOSE):  # sending directly is simpler
            best = found
    return best
