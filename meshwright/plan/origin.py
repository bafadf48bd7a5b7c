"""From a plan back to the Program it is of, where the plan names its model."""

from __future__ import annotations

from typing import cast

from meshwright.capture import Precision, Program, capture
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan.plan import Plan


def program_of(plan: Plan, path: str) -> Program:
    """Captured at the plan's batch and precision; whether it is the plan's is not looked at. path: for the message."""
    if not plan.model:
        raise PlanError(
            f"{path} names no model reference", "a plan made by `meshwright plan`", "use the Python API with the model"
        )
    return capture(*parse_reference(plan.model).meta(plan.batch), precision=cast(Precision, plan.precision))
