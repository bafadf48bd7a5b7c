"""Plans from files at today's prices, which may differ from the file after an edit or an update."""

from __future__ import annotations

from math import isclose

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes, show_seconds
from meshwright.predict.step import predict, predicted

SAME = 1e-6


def reprice_loaded(plan: Plan, program: Program) -> tuple[Plan, str]:
    """(the plan, a line on what differs from its file). The plan itself and no line if nothing does."""
    new, old = predict(plan, program), plan.predicted
    if isclose(new.step_s, old.step_s, rel_tol=SAME) and new.peak_bytes == old.peak_bytes:
        return plan, ""
    had = f"the file says step {show_seconds(old.step_s)}, peak {show_bytes(old.peak_bytes)}"
    return predicted(plan, program), f"{had}; predicted now: {show_seconds(new.step_s)}, {show_bytes(new.peak_bytes)}"
