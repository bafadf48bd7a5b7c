"""A pipeline made by hand: the choices of plans of one stage, cut where one says and laid on other ranks.

Each stage takes its segments from a plan of the whole program on that stage's devices, whatever made it. So every
hand-made pipeline is a plan like those that are searched: `equal_cuts` with any baseline inside, or GPipe's.
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

UNPROVEN = 1.0
"""The gap of a plan that nobody searched: no bound is known but zero seconds."""


def equal_cuts(segments: int, stages: int) -> tuple[int, ...]:
    """Ends of so many runs of segments, as equal as can be."""
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
    """Segments up to cuts[k] as plans[k] has them. `ranks`: those of each stage, one run after the other unless given;
    stages on the same ranks are one physical stage."""
    _check(program, plans, cuts)
    if len(plans) == 1:
        return plans[0]
    meshes = _meshes(plans, ranks)
    firsts = (0, *cuts[:-1])
    number_of = {i: k for k, (a, b) in enumerate(zip(firsts, cuts, strict=True)) for i in range(a, b)}
    choices = [_choice(program, plans, number_of, index) for index in range(len(program.segments))]
    distinct = list(dict.fromkeys(map(_key, choices)))
    homes = {parameter.name: number_of[program.uses_of(parameter.name)[0]] for parameter in program.parameters}
    small = program.at_batch(plans[0].microbatch)
    stages = []
    for k, (first, end, mesh) in enumerate(zip(firsts, cuts, meshes, strict=True)):
        inputs, prologue = input_layouts(small, mesh, choices[first:end], first)
        read = dict.fromkeys(name for segment in program.segments[first:end] for name in segment.params)
        tied_replicas = {name: plans[k].parameters[name].compute for name in read if homes[name] != k}
        stages.append(Stage(first, end, mesh, inputs, prologue, tied_replicas))
    by_key = dict(zip(map(_key, choices), choices, strict=True))
    plan = replace(
        plans[0],
        cluster=" and ".join(f"{n} x {name}" for name, n in _devices(meshes).items()),
        stages=tuple(stages),
        choices=tuple(by_key[key] for key in distinct),
        segments=tuple(distinct.index(_key(choice)) for choice in choices),
        parameters={name: plans[homes[name]].parameters[name] for name in plans[0].parameters},
        schedule=schedule,
        pins=(),
    )
    plan.verify()
    nowhere = replace(plan, predicted=NOTHING, links=(), cluster="")  # it has no wires yet
    found, _ = pipeline_predicted(nowhere, program, exact=False)
    return replace(found.with_prediction(gap=UNPROVEN), cluster=plan.cluster)


def recomputing(plan: Plan, program: Program, stages: Sequence[bool] | None = None) -> Plan:
    """The same plan, where segments of these stages (all unless given) keep nothing that they can recompute."""
    wanted = [True] * len(plan.stages) if stages is None else stages
    found = []
    for stage, again in zip(plan.stages, wanted, strict=True):
        for index in stage.segments:
            graph = program.graphs[program.segments[index].graph]
            names = tuple(value.name for op in graph.ops for value in op.results if value.grad)
            found.append(replace(plan.choice(index), recompute=names) if again else plan.choice(index))
    distinct = {_key(choice): choice for choice in found}
    order = list(distinct)
    return replace(
        plan, choices=tuple(distinct.values()), segments=tuple(order.index(_key(choice)) for choice in found)
    )


def priced_on(plan: Plan, program: Program, cluster: Cluster) -> Plan:
    """The plan with the wires that the cluster has between its stages, and with what the simulator predicts of it."""
    wired = replace(plan, links=stage_links(plan, program, SubmeshLinks(cluster))) if len(plan.stages) > 1 else plan
    return reprice(wired, program).with_prediction(gap=UNPROVEN)


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
    """How many of each kind the stages take together."""
    return Counter({rank: mesh.device.name for mesh in meshes for rank in mesh.ranks}.values())


def _key(choice: Choice) -> str:
    return repr(choice)


def _choice(program: Program, plans: Sequence[Plan], number_of: dict[int, int], index: int) -> Choice:
    """What the segment's own plan chose; values that other stages read too are handed over and read reduced."""
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
