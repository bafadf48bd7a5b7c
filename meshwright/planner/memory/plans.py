"""Plans with given rematerialisation points, and the initial plan on one device."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.plan import Choice, ParameterPlan, Plan, Stage
from meshwright.planner.realize import unpredicted_plan
from meshwright.planner.space.input_layouts import input_layouts
from meshwright.predict.ways import with_choices
from meshwright.price.flow import invariant
from meshwright.price.parameter import Setting
from meshwright.remat.curve import RematPoint


def with_kept(plan: Plan, picked: Sequence[RematPoint]) -> Plan:
    """The plan with the point of each instance; its prediction is not updated."""
    return with_choices(plan, [kept.on(plan.choice(index)) for index, kept in enumerate(picked)])


PLAIN = Setting()


def one_device_plan(
    program: Program, mesh: Mesh, setting: Setting = PLAIN, microbatches: int = 1, cluster: str = ""
) -> Plan:
    """Everything whole and kept on a mesh of one device, without a prediction. A weight that the setting offloads is
    fetched for each use."""
    whole = str(invariant(mesh))
    none = ",".join("-" for _ in mesh.axes)
    made = [
        Choice(
            index,
            (whole,) * len(graph.inputs),
            (whole,) * len(graph.outputs),
            {op.name: none for op in graph.ops},
            {value.name: whole for value in graph.params},
        )
        for index, graph in enumerate(program.graphs)
    ]
    choices = [made[segment.graph] for segment in program.segments]
    stage = Stage(0, len(choices), mesh, *input_layouts(program, mesh, choices))
    parameters = {}
    for parameter in program.parameters:
        there = setting.offload_of(parameter.name, parameter.trainable)
        dtype, again = setting.storage_dtype(parameter.type.dtype), there == "weight"
        parameters[parameter.name] = ParameterPlan(whole, whole, dtype, again, offload=there)
    return unpredicted_plan(program, cluster, [stage], choices, parameters, setting, microbatches)
