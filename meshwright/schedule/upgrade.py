"""A plan file of schema 2 as a Plan of today; the order of a searched schedule, which schema 2 leaves out, is found."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.plan.origin import program_of
from meshwright.plan.upgrade import OLDEST, upgraded
from meshwright.schedule.of_plan import plan_pipeline, with_tasks


def upgrade(path: str | os.PathLike[str]) -> Plan:
    """A searched order is found from the plan's own predictions, as the version that wrote it would at each load; this
    takes the model that the plan names. A file of today's schema is read as it is."""
    try:
        text = Path(path).read_bytes()
        plain = msgspec.json.decode(text)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}", "a plan file", "check the path") from error
    except msgspec.DecodeError as error:
        raise PlanError(f"{path} is not a plan: {error}", "JSON written by `meshwright plan -o`") from error
    if not isinstance(plain, dict) or plain.get("schema") != OLDEST:
        return Plan.from_json(text, str(path))
    renamed = upgraded(plain)
    if renamed.get("schedule") == "searched":
        renamed["tasks"] = _tasks(renamed, str(path))
    return Plan.from_json(msgspec.json.encode(renamed), str(path))


def _tasks(renamed: dict[str, object], path: str) -> tuple[str, ...]:
    try:
        plan = msgspec.convert(renamed, Plan)
    except msgspec.ValidationError as error:
        raise PlanError(f"{path} does not fit the schema: {error}", "the fields as planned", "plan again") from error
    plan.verify()
    program = program_of(plan, path)
    plan.check_program(program)
    return with_tasks(plan, plan_pipeline(plan, program)).tasks
