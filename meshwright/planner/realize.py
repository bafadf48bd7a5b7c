"""From the chain that was chosen to a Plan in writing."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.plan import Choice, ParameterPlan, Plan, Stage
from meshwright.planner.chain.chains import Chain
from meshwright.planner.sharding.model import Point, ShardingModel
from meshwright.planner.space.input_layouts import input_layouts, input_plans
from meshwright.predict import predicted
from meshwright.predict.fast import quick_prediction


def assemble(program: Program, cluster: Cluster, chain: Chain, shardings: ShardingModel) -> Plan:
    """Model reference, memory limit and pins are the caller's to add."""
    return predicted(draft(program, cluster, chain, shardings), program)


def draft(program: Program, cluster: Cluster, chain: Chain, shardings: ShardingModel) -> Plan:
    """The same with what the search knows of it, for what is to be changed further."""
    mesh, small = shardings.mesh, shardings.program
    choices: list[Choice] = []
    for point in chain.points:
        if point.point.choice not in choices:
            choices.append(point.point.choice)
    inputs, prologue = input_layouts(small, mesh, [point.point.choice for point in chain.points])
    return Plan(
        fingerprint=program.fingerprint(),
        model="",
        batch=program.batch,
        cluster=cluster.name,
        stages=(Stage(0, len(program.segments), mesh, inputs, prologue),),
        inputs=input_plans(program),
        choices=tuple(choices),
        segments=tuple(choices.index(point.point.choice) for point in chain.points),
        parameters=_parameters(program, chain.points),
        predicted=quick_prediction([point.point for point in chain.points], chain.microbatches, exact_peak=False),
        microbatches=chain.microbatches,
        precision=shardings.setting.precision,
        optimizer=shardings.setting.optimizer,
        compile=shardings.setting.compile,
    )


def _parameters(program: Program, points: tuple[Point, ...]) -> dict[str, ParameterPlan]:
    found: dict[str, ParameterPlan] = {}
    for segment, point in zip(program.segments, points, strict=True):
        for value, name in zip(program.graphs[segment.graph].params, segment.params, strict=True):
            found.setdefault(name, point.parameters[value.name])
    return {parameter.name: found[parameter.name] for parameter in program.parameters}
