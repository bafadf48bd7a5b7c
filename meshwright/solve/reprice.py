"""A plan priced again from scratch, op by op on the unfolded program: what the solver said, or what an edit costs."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.plan import FrontierPoint, ParameterPlan, Plan
from meshwright.price.check import check_plan
from meshwright.price.parameter import Setting
from meshwright.price.segment import price_segment
from meshwright.solve.account import collectives_of, communication_s


def setting_of(plan: Plan) -> Setting:
    return Setting(plan.optimizer, plan.precision, plan.microbatches)


def segment_points(plan: Plan, program: Program) -> list[FrontierPoint]:
    """What every segment costs under the plan; segments that are alike are priced once."""
    known: dict[object, FrontierPoint] = {}
    found = []
    for index, segment in enumerate(program.segments):
        graph = program.graphs[segment.graph]
        pairs = list(zip((value.name for value in graph.params), segment.params, strict=True))
        parameters = {local: plan.parameters[name] for local, name in pairs}
        charged = {local: len(uses) for local, name in pairs if (uses := program.uses_of(name))[0] == index}
        key = (plan.segments[index], tuple(parameters.items()), tuple(charged.items()))
        if key not in known:
            known[key] = price(plan, program, index, parameters, charged)
        found.append(known[key])
    return found


def price(
    plan: Plan,
    program: Program,
    index: int,
    parameters: dict[str, ParameterPlan],
    charged: dict[str, int] | None = None,
) -> FrontierPoint:
    graph = program.graph(program.segments[index]).at(plan.microbatch)
    return price_segment(graph, plan.choice(index), parameters, plan.mesh, setting_of(plan), charged)


def reprice(plan: Plan, program: Program) -> Plan:
    """The same plan with its prediction made anew."""
    check_plan(plan, program)
    points = segment_points(plan, program)
    micro = plan.microbatches
    held = sum(point.held_bytes for point in points)
    transient = max(point.transient_bytes for point in points)
    collectives = collectives_of(plan, program)
    return replace(
        plan,
        predicted=replace(
            plan.predicted,
            step_s=sum(point.seconds(micro) for point in points),
            forward_s=micro * sum(point.forward_s for point in points),
            backward_s=micro * sum(point.backward_s for point in points),
            parameters_s=sum(point.first_s + point.last_s for point in points),
            optimizer_s=sum(point.step_s for point in points),
            communication_s=communication_s(collectives, plan.mesh),
            static_bytes=sum(point.static_bytes for point in points),
            resident_bytes=sum(point.resident_bytes for point in points),
            transient_bytes=transient,
            peak_bytes=held + transient,
            collectives=collectives,
        ),
    )
