"""From the stages of a pipeline to a Plan: devices, layouts, weights and their tied replicas, links."""

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
from meshwright.planner.realize import unpredicted_plan
from meshwright.planner.space.input_layouts import input_layouts
from meshwright.predict.pieces import stand_in
from meshwright.predict.step import pipeline_predicted
from meshwright.price.parameter import Setting
from meshwright.schedule import Pipeline, plan_pipeline


@dataclass(frozen=True, slots=True)
class ShardedRun:
    """Segments [first, end) of a physical stage, sharded as in a chain on that class of submeshes.

    An interleaved stage has several runs.
    """

    first: int
    end: int
    stage: int
    mesh: StageMesh
    sharded: ShardedChain


def placed_meshes(cluster: Cluster, runs: Sequence[ShardedRun]) -> list[Mesh]:
    """A mesh on devices of its own for every physical stage."""
    classes = {run.stage: run.mesh for run in reversed(runs)}
    ranks = placed(cluster, tuple(classes[stage].place for stage in range(len(classes))))
    return [mesh_on(cluster, classes[stage].mesh.sizes, own) for stage, own in enumerate(ranks)]


def pipeline_plan(
    program: Program,
    cluster: Cluster,
    runs: Sequence[ShardedRun],
    schedule: str,
    setting: Setting,
    submesh_links: SubmeshLinks,
) -> Plan:
    """The Plan of a pipeline, not predicted. The request's fields are the caller's to set."""
    small = program.at_batch(cut_batch(program.batch, setting.microbatches)[0])
    meshes = placed_meshes(cluster, runs)
    choices = [run.sharded.points[index].point.choice for run in runs for index in range(run.first, run.end)]
    stages = []
    known: dict[object, tuple[dict[str, str], Choice]] = {}
    for run in runs:
        mesh, own = meshes[run.stage], choices[run.first : run.end]
        pairs = zip(program.segments[run.first : run.end], own, strict=True)
        key = (
            stand_in(mesh),
            frozenset((segment.graph, id(choice), segment.shared_values) for segment, choice in pairs),
        )
        if key not in known:
            known[key] = input_layouts(small, stand_in(mesh), own, run.first)
        inputs, prologue = known[key]
        stages.append(Stage(run.first, run.end, mesh, inputs, prologue, _tied_replicas(program, run)))
    parameters = _parameters(program, runs)
    plan = unpredicted_plan(program, cluster.name, stages, choices, parameters, setting, setting.microbatches)
    plan = replace(plan, per_host=per_host(cluster), schedule=schedule)
    return name_axes(program, replace(plan, links=stage_links(plan, program, submesh_links)))


def _parameters(program: Program, runs: Sequence[ShardedRun]) -> dict[str, ParameterPlan]:
    """Of every parameter, as the first run that reads it has it."""
    found: dict[str, ParameterPlan] = {}
    for run in runs:
        for index in range(run.first, run.end):
            for name in program.segments[index].params:
                if name not in found:
                    found[name] = parameter_of(program, run.sharded, name, index)
    return found


def _tied_replicas(program: Program, run: ShardedRun) -> dict[str, str]:
    """Compute layouts of weights that an earlier run owns, be it on the same devices as under interleaving."""
    found: dict[str, str] = {}
    for index in range(run.first, run.end):
        for name in program.segments[index].params:
            if program.uses_of(name)[0] < run.first:
                found.setdefault(name, parameter_of(program, run.sharded, name, index).compute)
    return found


def stage_links(plan: Plan, program: Program, submesh_links: SubmeshLinks) -> tuple[StageLink, ...]:
    """Links in both directions between all stages that exchange values, routed via stages or not."""
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
    """Segments whose values are read by a stage that does not come right after theirs."""
    stage_of = [run.stage for run in pipeline.runs for _ in run.segments]
    found: dict[int, bool] = {}
    for producer, reader in pipeline.all_reads():
        way = dict.fromkeys(stage_of[producer : reader + 1])
        found[producer] = found.get(producer, False) or len(way) > 2
    return [producer for producer, far in found.items() if far]


def route_far_values(plan: Plan, program: Program) -> Plan:
    """The plan and its prediction, with values that skip stages sent from stage to stage where that is faster."""
    best = plan
    for segment in skipping(plan_pipeline(plan, program)):
        found, _ = pipeline_predicted(
            replace(best, routed_via_stages=(*best.routed_via_stages, segment)), program, exact=False
        )
        if found.predicted.step_s < best.predicted.step_s * (1 - CLOSE):  # sending directly is simpler
            best = found
    return best
