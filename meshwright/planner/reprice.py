"""`Plan.price`: the prediction of a plan made anew, to check the planner or to price an edit."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.predict import predicted
from meshwright.price.check import check_plan


def reprice(plan: Plan, program: Program) -> Plan:
    """The same plan with its prediction made anew; its gap is kept."""
    check_plan(plan, program)
    return predicted(plan, program)
