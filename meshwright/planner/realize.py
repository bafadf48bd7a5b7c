"""From the solution of a search to a Plan."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.plan import Choice, ParameterPlan, Plan, Prediction, Stage
from meshwright.planner.chain.chains import Chain
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.space.input_layouts import input_layouts, input_plans
from meshwright.predict import predicted
from meshwright.predict.fast import NOTHING, quick_prediction
from meshwright.predict.ways import shared_choices
from meshwright.price.parameter import Setting


def assemble(program: Program, cluster: Cluster, chain: Chain, shardings: ShardingModel) -> Plan:
    """The Plan of one stage that a chain is, with its prediction. The request's fields are the caller's to set."""
    return predicted(draft(program, cluster, chain, shardings), program)


def draft(program: Program, cluster: Cluster, chain: Chain, shardings: ShardingModel) -> Plan:
    """`assemble` with the search's own rough prediction, for a plan that is changed further."""
    points = [point.point for point in chain.points]
    parameters: dict[str, ParameterPlan] = {}
    for segment, point in zip(program.segments, chain.points, strict=True):
        for value, name in zip(program.graphs[segment.graph].params, segment.params, strict=True):
            parameters.setdefault(name, point.parameters[value.name])
    inputs, prologue = input_layouts(shardings.program, shardings.mesh, [point.choice for point in points])
    return unpredicted_plan(
        program,
        cluster.name,
        [Stage(0, len(program.segments), shardings.mesh, inputs, prologue)],
        [point.choice for point in points],
        parameters,
        shardings.setting,
        chain.microbatches,
        quick_prediction(points, chain.microbatches, exact_peak=False),
    )


def unpredicted_plan(
    program: Program,
    cluster: str,
    stages: Sequence[Stage],
    choices: Sequence[Choice],
    parameters: dict[str, ParameterPlan],
    setting: Setting,
    microbatches: int,
    rough: Prediction = NOTHING,
) -> Plan:
    """The Plan of stages and choices.

    parameters: by full name, in any order.
    """
    different, segments = shared_choices(choices)
    return Plan(
        fingerprint=program.fingerprint(),
        answers=program.answers,
        form=program.form,
        model="",
        batch=program.batch,
        cluster=cluster,
        stages=tuple(stages),
        inputs=input_plans(program),
        choices=different,
        segments=segments,
        parameters={parameter.name: parameters[parameter.name] for parameter in program.parameters},
        predicted=rough,
        microbatches=microbatches,
        precision=setting.precision,
        optimizer=setting.optimizer,
        compile=setting.compile,
    )
