"""`simulate_plan`: the timeline of one step of a plan, instruction by instruction."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.predict.step import play
from meshwright.predict.traffic import halves
from meshwright.price.check import check_plan
from meshwright.price.segment import collectives_s
from meshwright.schedule import plan_lists
from meshwright.schedule.reads import reads_of
from meshwright.simulate import Costs, Timeline, simulate


def simulate_plan(plan: Plan, program: Program, *, overlap: bool = True) -> Timeline:
    """The timeline of one step, as `predict` has it.

    overlap: gathers and reductions overlap compute where the runtime does so.
    """
    check_plan(plan, program)
    found = play(plan, program, overlap=overlap)
    costs = _with_inner_collectives(plan, program, found.costs)
    return simulate(plan_lists(found.plan, program), costs, reads=reads_of(program))


def _with_inner_collectives(plan: Plan, program: Program, costs: Costs) -> Costs:
    """The costs with the seconds of collectives inside segments, which overlap nothing of their segment."""
    alike: dict[object, tuple[float, float]] = {}
    found = []
    for index, cost in enumerate(costs.segments):
        stage, shared_values = plan.stage_of(index), plan.common_layouts(program, index)
        key = (plan.segments[index], id(stage), index == len(costs.segments) - 1, tuple(shared_values.items()))
        if key not in alike:
            parts = list(halves(plan, program, index, shared_values))
            forward_s, backward_s = (
                sum(collectives_s(some, stage.mesh) for forward, some in parts if forward is wanted)
                for wanted in (True, False)
            )
            alike[key] = forward_s, backward_s
        found.append(replace(cost, forward_comm_s=alike[key][0], backward_comm_s=alike[key][1]))
    last, smaller = costs.last, plan.remainder
    if last is not None and smaller is not None:
        last = _with_inner_collectives(smaller, program, last)
    return replace(costs, segments=found, last=last)
