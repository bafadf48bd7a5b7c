"""A plan from a file, at today's prices: they may have changed since it was written, or the file was edited."""

from __future__ import annotations

from math import isclose

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes, show_seconds
from meshwright.predict.step import predict, predicted

SAME = 1e-6


def priced_again(plan: Plan, program: Program) -> tuple[Plan, str]:
    """(the plan, what differs from its file): itself and nothing where the file says what is predicted."""
    new, old = predict(plan, program), plan.predicted
    if isclose(new.step_s, old.step_s, rel_tol=SAME) and new.peak_bytes == old.peak_bytes:
        return plan, ""
    had = f"the file says step {show_seconds(old.step_s)}, peak {show_bytes(old.peak_bytes)}"
    return predicted(plan, program), f"{had}; predicted now: {show_seconds(new.step_s)}, {show_bytes(new.peak_bytes)}"
