"""A plan priced again from scratch: what the solver said, or what an edit costs."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.predict import predicted
from meshwright.price.check import check_plan


def reprice(plan: Plan, program: Program) -> Plan:
    """The same plan with its prediction made anew; the gap is what the solver proved."""
    check_plan(plan, program)
    return predicted(plan, program)
