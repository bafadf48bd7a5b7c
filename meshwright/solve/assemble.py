"""From the chain that was chosen to a Plan in writing, its mesh axes named after what they came to do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.cluster import FLAT, Cluster
from meshwright.layout import Collective, Layout
from meshwright.plan import Choice, ParameterPlan, Plan, Stage
from meshwright.solve.account import accounted
from meshwright.solve.frontier import Frontier, Point
from meshwright.solve.inputs import input_layouts, input_plans
from meshwright.solve.mix import Chain
from meshwright.solve.points import prediction


def assemble(program: Program, cluster: Cluster, chain: Chain, frontier: Frontier) -> Plan:
    """Model reference, memory limit and pins are the caller's to add."""
    mesh, small = frontier.mesh, frontier.program
    choices: list[Choice] = []
    for point in chain.points:
        if point.point.choice not in choices:
            choices.append(point.point.choice)
    inputs, prologue = input_layouts(small, mesh, [point.point.choice for point in chain.points])
    plan = Plan(
        fingerprint=program.fingerprint(),
        model="",
        batch=program.batch,
        cluster=cluster.name,
        stages=(Stage(0, len(program.segments), mesh, inputs, prologue),),
        inputs=input_plans(program),
        choices=tuple(choices),
        segments=tuple(choices.index(point.point.choice) for point in chain.points),
        parameters=_parameters(program, chain.points),
        predicted=prediction([point.point for point in chain.points], chain.microbatches, exact_peak=False),
        microbatches=chain.microbatches,
        precision=frontier.setting.precision,
        optimizer=frontier.setting.optimizer,
    )
    return accounted(plan, program)


def _parameters(program: Program, points: tuple[Point, ...]) -> dict[str, ParameterPlan]:
    found: dict[str, ParameterPlan] = {}
    for segment, point in zip(program.segments, points, strict=True):
        for value, name in zip(program.graphs[segment.graph].params, segment.params, strict=True):
            found.setdefault(name, point.parameters[value.name])
    return {parameter.name: found[parameter.name] for parameter in program.parameters}


def name_axes(program: Program, plan: Plan) -> Plan:
    """`dp` where more weights are used whole by different samples, `tp` where more are split, else `rep`."""
    counts = [Counter[str]() for _ in plan.mesh.axes]
    for parameter in program.parameters:
        for count, state in zip(counts, Layout.parse(plan.parameters[parameter.name].compute), strict=True):
            count[state.kind] += 1
    names: list[str] = []
    for count in counts:
        role = "rep" if not count["R"] and not count["S"] else "dp" if count["R"] >= count["S"] else "tp"
        again = sum(name.startswith(role) for name in names)
        names.append(f"{role}{again + 1}" if again else role)
    new = dict(zip(plan.mesh.names, names, strict=True))
    renamed = tuple(
        Collective(item.kind, FLAT.join(new[part] for part in item.axis.split(FLAT)), item.bytes)
        for item in plan.predicted.collectives
    )
    mesh = plan.mesh.renamed(tuple(names))
    stages = tuple(replace(stage, mesh=mesh) for stage in plan.stages)
    return replace(plan, stages=stages).with_prediction(collectives=renamed)
