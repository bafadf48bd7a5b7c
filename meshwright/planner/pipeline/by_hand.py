"""Pipelines made by hand: stages whose segments are taken from plans of one stage.

Each stage copies its segments from a plan of the whole program on that stage's devices. So a hand-made pipeline, such
as GPipe's or equal cuts with any recipe inside, is a plan like those that are searched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.cluster import Cluster, Mesh
from meshwright.errors import PlanError, counted
from meshwright.layout import I, Layout
from meshwright.plan import Choice, Plan, Stage
from meshwright.planner.pipeline.meshes import SubmeshLinks
from meshwright.planner.pipeline.realize import stage_links
from meshwright.planner.reprice import reprice
from meshwright.planner.space.input_layouts import input_layouts
from meshwright.predict.fast import NOTHING
from meshwright.predict.step import pipeline_predicted
from meshwright.predict.ways import with_choices

UNPROVEN = 1.0
"""The gap of a plan that was not searched: no lower bound is known but zero seconds."""


def equal_cuts(segments: int, stages: int) -> tuple[int, ...]:
    """Ends of runs of segments with nearly equal numbers of segments."""
    if not 1 <= stages <= segments:
        raise PlanError(
            f"{counted(stages, 'stage')} of {counted(segments, 'layer')}", f"1 to {segments}", "ask for fewer stages"
        )
    return tuple(segments * (number + 1) // stages for number in range(stages))


def cut_stages(
    program: Program,
    plans: Sequence[Plan],
    cuts: Sequence[int],
    *,
    schedule: str = "1f1b",
    ranks: Sequence[Sequence[int]] | None = None,
) -> Plan:
    """The pipeline whose stage k runs the segments before cuts[k] as plans[k] does.

    ranks: of each stage; consecutive unless given. Stages on the same ranks are one physical stage.
    """
    _check(program, plans, cuts)
    if len(plans) == 1:
        return plans[0]
    meshes = _meshes(plans, ranks)
    firsts = (0, *cuts[:-1])
    number_of = {i: k for k, (a, b) in enumerate(zip(firsts, cuts, strict=True)) for i in range(a, b)}
    choices = [_choice(program, plans, number_of, index) for index in range(len(program.segments))]
    homes = {parameter.name: number_of[program.uses_of(parameter.name)[0]] for parameter in program.parameters}
    small = program.at_batch(plans[0].microbatch)
    stages = []
    for k, (first, end, mesh) in enumerate(zip(firsts, cuts, meshes, strict=True)):
        inputs, prologue = input_layouts(small, mesh, choices[first:end], first)
        read = dict.fromkeys(name for segment in program.segments[first:end] for name in segment.params)
        tied_replicas = {name: plans[k].parameters[name].compute for name in read if homes[name] != k}
        stages.append(Stage(first, end, mesh, inputs, prologue, tied_replicas))
    plan = replace(
        with_choices(plans[0], choices),
        cluster=" and ".join(f"{n} x {name}" for name, n in _devices(meshes).items()),
        stages=tuple(stages),
        parameters={name: plans[homes[name]].parameters[name] for name in plans[0].parameters},
        schedule=schedule,
        pins=(),
    )
    plan.verify()
    unlinked = replace(plan, predicted=NOTHING, links=(), cluster="")
    found, _ = pipeline_predicted(unlinked, program, exact=False)
    return replace(found.with_prediction(gap=UNPROVEN), cluster=plan.cluster)


def recomputing(plan: Plan, program: Program, stages: Sequence[bool] | None = None) -> Plan:
    """The same plan with full recomputation.

    stages: which of them recompute; all unless given.
    """
    wanted = [True] * len(plan.stages) if stages is None else stages
    found = []
    for stage, recompute in zip(plan.stages, wanted, strict=True):
        for index in stage.segments:
            graph = program.graphs[program.segments[index].graph]
            names = tuple(value.name for op in graph.ops for value in op.results if value.grad)
            found.append(replace(plan.choice(index), recompute=names) if recompute else plan.choice(index))
    return with_choices(plan, found)


def priced_on(plan: Plan, program: Program, cluster: Cluster) -> Plan:
    """The plan with the cluster's links between its stages, and its prediction."""
    linked = replace(plan, links=stage_links(plan, program, SubmeshLinks(cluster))) if len(plan.stages) > 1 else plan
    return reprice(linked, program).with_prediction(gap=UNPROVEN)


def _check(program: Program, plans: Sequence[Plan], cuts: Sequence[int]) -> None:
    if len(plans) != len(cuts) or not cuts or list(cuts) != sorted(set(cuts)) or cuts[-1] != len(program.segments):
        raise PlanError(
            f"cuts {list(cuts)} for {counted(len(plans), 'stage')} of {counted(len(program.segments), 'segment')}",
            f"one rising number for each stage, the last {len(program.segments)}",
        )
    if len({(plan.batch, plan.microbatches, plan.optimizer, plan.precision) for plan in plans}) != 1:
        raise PlanError("stages with other batches, micro-batches, optimizers or precisions", "the same for all")


def _meshes(plans: Sequence[Plan], ranks: Sequence[Sequence[int]] | None) -> list[Mesh]:
    if ranks is None:
        ends = [sum(plan.world_size for plan in plans[: k + 1]) for k in range(len(plans))]
        ranks = [range(end - plan.world_size, end) for end, plan in zip(ends, plans, strict=True)]
    return [replace(plan.mesh, ranks=tuple(own)) for plan, own in zip(plans, ranks, strict=True)]


def _devices(meshes: Sequence[Mesh]) -> Counter[str]:
    """Number of devices of each type that all stages take."""
    return Counter({rank: mesh.device.name for mesh in meshes for rank in mesh.ranks}.values())


def _choice(program: Program, plans: Sequence[Plan], number_of: dict[int, int], index: int) -> Choice:
    """The choice of the segment's own plan; values that other stages read too are reduced before they are sent."""
    segment, own = program.segments[index], number_of[index]
    choice = plans[own].choice(index)

    def crosses(name: str) -> bool:
        found = {
            number_of[i] for i, other in enumerate(program.segments) if name in other.inputs or name in other.outputs
        }
        return len(found) > 1

    def reduced(name: str, text: str) -> str:
        return _without_partial(text) if crosses(name) else text

    inputs = tuple(reduced(name, text) for name, text in zip(segment.inputs, choice.inputs, strict=True))
    outputs = tuple(reduced(name, text) for name, text in zip(segment.outputs, choice.outputs, strict=True))
    return replace(choice, inputs=inputs, outputs=outputs)


def _without_partial(text: str) -> str:
    return str(Layout(tuple(I if state.kind == "P" else state for state in Layout.parse(text))))
