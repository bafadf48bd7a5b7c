"""A plan priced again from scratch: what the solver said, or what an edit costs."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.price.check import check_plan
from meshwright.solve.account import accounted
from meshwright.solve.ordered import ordered_prediction
from meshwright.solve.pipeline.plan import fully_predicted
from meshwright.solve.points import Ways, keeping_all, prediction


def reprice(plan: Plan, program: Program) -> Plan:
    """The same plan with its prediction made anew; the gap is what the solver proved."""
    check_plan(plan, program)
    if len(plan.stages) > 1:
        return fully_predicted(plan, program)
    if plan.recomputes or plan.order:
        ways = Ways.of(plan, program)
        picked = ways.picked(plan)
        nested = ordered_prediction(plan, program, ways, picked) if plan.order else None
        found = nested or ways.predicted(picked, plan.microbatches)
    else:
        found = prediction(keeping_all(plan, program), plan.microbatches, exact_peak=False)
    return accounted(replace(plan, predicted=replace(found, gap=plan.predicted.gap)), program)
