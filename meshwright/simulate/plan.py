"""A plan's Costs: the points of its segments, priced again from the plan alone."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import FrontierPoint, Plan
from meshwright.price.check import check_plan
from meshwright.price.parameter import Setting
from meshwright.price.segment import price_segment
from meshwright.schedule import plan_instructions
from meshwright.simulate.costs import Costs, SegmentCost
from meshwright.simulate.play import simulate
from meshwright.simulate.timeline import Timeline


def simulate_plan(plan: Plan, program: Program, *, overlap: bool = False) -> Timeline:
    """One step of a plan of one stage. `overlap`: gathers and reductions run beside compute; the runtime waits for
    them so far."""
    check_plan(plan, program)
    if len(plan.stages) != 1:
        raise PlanError(f"a plan of {len(plan.stages)} stages", "a plan of one, the only kind that is planned so far")
    costs = [SegmentCost.of(point) for point in plan_points(plan, program)]
    instructions = plan_instructions(plan, program)
    return simulate([instructions], Costs(costs, overlap=overlap, ranks=[plan.world_size]))


def plan_points(plan: Plan, program: Program) -> list[FrontierPoint]:
    """Each segment's seconds and bytes under the plan; segments that do the same are priced once."""
    setting = Setting(plan.optimizer, plan.precision, plan.microbatches)
    uses = {parameter.name: program.uses_of(parameter.name) for parameter in program.parameters}
    known: dict[object, FrontierPoint] = {}
    found = []
    for index, segment in enumerate(program.segments):
        graph = program.graphs[segment.graph]
        locals_of = list(zip(graph.params, segment.params, strict=True))
        charged = {value.name: len(uses[name]) for value, name in locals_of if uses[name][0] == index}
        parameters = {value.name: plan.parameters[name] for value, name in locals_of}
        key = (plan.segments[index], tuple(charged.items()), tuple(parameters.items()))
        if key not in known:
            fixed = graph.at(plan.microbatch)
            known[key] = price_segment(fixed, plan.choice(index), parameters, plan.mesh, setting, charged)
        found.append(known[key])
    return found
