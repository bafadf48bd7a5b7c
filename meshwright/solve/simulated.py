"""A plan played by the simulator: its segments priced again from the plan alone, its instructions as they will run."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.price.check import check_plan
from meshwright.schedule import plan_instructions, plan_lists, plan_pipeline
from meshwright.simulate import Costs, SegmentCost, Timeline, simulate
from meshwright.solve.account import communication_s, halves
from meshwright.solve.ordered import ordered_points
from meshwright.solve.pipeline.costs import plan_costs
from meshwright.solve.points import Ways, plan_points


def simulate_plan(plan: Plan, program: Program, *, overlap: bool = True) -> Timeline:
    """One step. `overlap`: gathers and reductions run beside compute where the runtime does so."""
    check_plan(plan, program)
    if len(plan.stages) > 1:
        pipeline = plan_pipeline(plan, program)
        costs = plan_costs(plan, program, pipeline, overlap=overlap)
        return simulate(plan_lists(plan, program), _with_wires(plan, program, costs), reads=pipeline.reads)
    if plan.order:
        ways = Ways.of(plan, program)
        points = ordered_points(plan, ways, ways.picked(plan))
    else:
        points = plan_points(plan, program)
    costs = Costs([SegmentCost.of(point) for point in points], overlap=overlap, ranks=[plan.world_size])
    return simulate([plan_instructions(plan, program)], _with_wires(plan, program, costs))


def _with_wires(plan: Plan, program: Program, costs: Costs) -> Costs:
    """With what of their segments' own seconds collectives take: nothing of a segment runs beside these."""
    alike: dict[object, tuple[float, float]] = {}
    found = []
    for index, cost in enumerate(costs.segments):
        stage, commons = plan.stage_of(index), plan.common_layouts(program, index)
        key = (plan.segments[index], id(stage), index == len(costs.segments) - 1, tuple(commons.items()))
        if key not in alike:
            parts = list(halves(plan, program, index, commons))
            forward_s, backward_s = (
                sum(communication_s(some, stage.mesh) for forward, some in parts if forward is wanted)
                for wanted in (True, False)
            )
            alike[key] = forward_s, backward_s
        found.append(replace(cost, forward_comm_s=alike[key][0], backward_comm_s=alike[key][1]))
    last, smaller = costs.last, plan.remainder
    if last is not None and smaller is not None:
        last = _with_wires(smaller, program, last)
    return replace(costs, segments=found, last=last)
