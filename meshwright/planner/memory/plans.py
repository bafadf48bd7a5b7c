"""Plans with given rematerialisation points, and the initial plan on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.plan import Choice, ParameterPlan, Plan, Stage
from meshwright.planner.space.input_layouts import input_layouts, input_plans
from meshwright.predict.fast import NOTHING
from meshwright.predict.ways import with_choices
from meshwright.price.flow import invariant
from meshwright.price.parameter import Setting
from meshwright.remat.curve import RematPoint


def with_kept(plan: Plan, picked: Sequence[RematPoint]) -> Plan:
    """The plan with the point of each instance; its prediction is not updated."""
    return with_choices(
        plan,
        [
            replace(
                plan.choice(index), recompute=kept.recompute, keep=kept.keep, chunks=kept.chunks, offload=kept.offload
            )
            for index, kept in enumerate(picked)
        ],
    )


def one_device_plan(
    program: Program,
    mesh: Mesh,
    *,
    cluster: str = "",
    optimizer: str = "adamw",
    precision: str = "fp32",
    compile: bool = False,
    microbatches: int = 1,
    offload: str = "",
    offloaded: frozenset[str] | None = None,
) -> Plan:
    """Everything whole and kept on a mesh of one device, without a prediction.

    offload, offloaded: as in a Setting; a weight on the host is fetched for each use.
    """
    whole = str(invariant(mesh))
    none = ",".join("-" for _ in mesh.axes)
    setting = Setting(optimizer, precision, offload=offload, offloaded=offloaded)
    choices = [
        Choice(
            index,
            (whole,) * len(graph.inputs),
            (whole,) * len(graph.outputs),
            {op.name: none for op in graph.ops},
            {value.name: whole for value in graph.params},
        )
        for index, graph in enumerate(program.graphs)
    ]
    segments = tuple(segment.graph for segment in program.segments)
    inputs, prologue = input_layouts(program, mesh, [choices[index] for index in segments])
    parameters = {}
    for parameter in program.parameters:
        there = setting.offload_of(parameter.name, parameter.trainable)
        dtype, again = setting.storage_dtype(parameter.type.dtype), there == "weight"
        parameters[parameter.name] = ParameterPlan(whole, whole, dtype, again, offload=there)
    return Plan(
        fingerprint=program.fingerprint(),
        answers=program.answers,
        form=program.form,
        model="",
        batch=program.batch,
        cluster=cluster,
        stages=(Stage(0, len(segments), mesh, inputs, prologue),),
        inputs=input_plans(program),
        choices=tuple(choices),
        segments=segments,
        parameters=parameters,
        predicted=NOTHING,
        optimizer=optimizer,
        precision=precision,
        compile=compile,
        microbatches=microbatches,
    )
