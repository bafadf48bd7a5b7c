"""From a plan back to the Program it is of, where the plan names its model."""

from __future__ import annotations

from typing import cast

from meshwright.capture import Precision, Program, capture
from meshwright.errors import ModelError, PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan.plan import Plan


def runs_code(reference: str) -> bool:
    """Whether a model reference names Python of somebody's own, which runs when the model is built."""
    name = reference.partition("?")[0]
    return ":" in name and not name.startswith("hf:")


def program_of(plan: Plan, path: str, model: str | None = None) -> Program:
    """Captured at the plan's batch and precision; whether it is the plan's is not looked at. path: for the message.

    model: the reference that the user has named. What a plan's file names is not run unless he has.
    """
    if model is None and not plan.model:
        raise PlanError(
            f"{path} names no model: it was made in Python",
            "the model, by a function that returns (model, batch) or (model, batch, loss)",
            "add --model file.py:function",
        )
    if model is None and runs_code(plan.model):
        raise PlanError(
            f"{path} names the model {plan.model}, which is code that would run",
            "a model of ours, or one that is named on the command line",
            f"add --model '{plan.model}' if you trust it",
        )
    reference = parse_reference(model or plan.model)
    given = reference.meta(plan.batch)
    return capture(*given, precision=cast(Precision, plan.precision), allow=plan.answers)


def program_here(plan: Plan, path: str, model: str | None = None) -> tuple[Program | None, str]:
    """The same, or None and why: a model given in Python has no reference, and one's own may be on another machine."""
    if model is None and not plan.model:
        return None, ""
    if model is None and runs_code(plan.model):
        return None, f"it is code that would run; add --model '{plan.model}' if you trust it"
    try:
        return program_of(plan, path, model), ""
    except ModelError as error:
        if model is not None or ":" in plan.model.partition("?")[0]:
            return None, error.given
        raise PlanError(f"model is {plan.model!r}: {error.given}", error.expected, "undo the edit") from error
