"""From a plan back to the Program it is of, where the plan names its model."""

from __future__ import annotations

from typing import cast

from meshwright.capture import Precision, Program, capture
from meshwright.errors import ModelError, PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan.plan import Plan


def program_of(plan: Plan, path: str) -> Program:
    """Captured at the plan's batch and precision; whether it is the plan's is not looked at. path: for the message."""
    if not plan.model:
        raise PlanError(
            f"{path} names no model reference", "a plan made by `meshwright plan`", "use the Python API with the model"
        )
    given = parse_reference(plan.model).meta(plan.batch)
    return capture(*given, precision=cast(Precision, plan.precision), allow=plan.answers)


def program_here(plan: Plan, path: str) -> tuple[Program | None, str]:
    """The same, or None and why: a model given in Python has no reference, and one's own may be on another machine."""
    if not plan.model:
        return None, ""
    try:
        return program_of(plan, path), ""
    except ModelError as error:
        if ":" in plan.model.partition("?")[0]:
            return None, error.given
        raise PlanError(f"model is {plan.model!r}: {error.given}", error.expected, "undo the edit") from error
