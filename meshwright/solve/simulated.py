"""A plan played by the simulator: its segments priced again from the plan alone, its instructions as they will run."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.price.check import check_plan
from meshwright.schedule import plan_instructions, plan_lists, plan_pipeline
from meshwright.simulate import Costs, SegmentCost, Timeline, simulate
from meshwright.solve.ordered import ordered_points
from meshwright.solve.pipeline.costs import plan_costs
from meshwright.solve.points import Ways, plan_points


def simulate_plan(plan: Plan, program: Program, *, overlap: bool = True) -> Timeline:
    """One step. `overlap`: gathers and reductions run beside compute where the runtime does so."""
    check_plan(plan, program)
    if len(plan.stages) > 1:
        pipeline = plan_pipeline(plan, program)
        costs = plan_costs(plan, program, pipeline, overlap=overlap)
        return simulate(plan_lists(plan, program), costs, reads=pipeline.reads)
    if plan.order:
        ways = Ways.of(plan, program)
        points = ordered_points(plan, ways, ways.picked(plan))
    else:
        points = plan_points(plan, program)
    own = [SegmentCost.of(point) for point in points]
    return simulate([plan_instructions(plan, program)], Costs(own, overlap=overlap, ranks=[plan.world_size]))
