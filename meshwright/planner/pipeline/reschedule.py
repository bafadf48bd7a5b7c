"""Searched schedules: list scheduling of a pipeline on its predicted durations, within the memory of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Plan, StagePrediction
from meshwright.planner.effort import MOST_UNITS, RETRIES
from meshwright.planner.pipeline.fit import nearly_predicted
from meshwright.schedule.check import most_in_flight
from meshwright.simulate import Timeline

MOST_TASKS = MOST_UNITS * MOST_UNITS
"""Forwards and backwards beyond which no schedule is searched, and micro-batches beyond which no pipeline is."""


def has_many_tasks(runs: int, microbatches: int) -> bool:
    """Whether searching a schedule takes too long."""
    return 2 * runs * microbatches > MOST_TASKS


def reordered(plan: Plan, program: Program, budgets: Sequence[int]) -> Plan | None:
    """The plan under a searched schedule, with its prediction; None where none within the budgets is found.

    plan: with its prediction.
    budgets: bytes of each physical stage.
    """
    if has_many_tasks(len(plan.stages), plan.microbatches):
        return None
    rooms = [
        _room(stage, plan.microbatches, limit) for stage, limit in zip(plan.predicted.stages, budgets, strict=True)
    ]
    runs = [len(group) for group in plan.groups]
    for _ in range(RETRIES):
        if any(room < count for room, count in zip(rooms, runs, strict=True)):
            return None
        stages = tuple(replace(s, in_flight=room) for s, room in zip(plan.predicted.stages, rooms, strict=True))
        try:
            searched = replace(plan, schedule="searched", tasks=()).with_prediction(stages=stages)
            found, played = nearly_predicted(searched, program, budgets)
        except PlanError:
            return None  # no rule comes to an end within so little
        over = [stage.peak_bytes - limit for stage, limit in zip(found.predicted.stages, budgets, strict=True)]
        if max(over) <= 0:
            return _tightened(found, program, budgets, played)
        rooms = [
            room - max(1, -(-more // max(1, _run_bytes(stage)))) if more > 0 else room
            for room, more, stage in zip(rooms, over, found.predicted.stages, strict=True)
        ]
    return None


def _tightened(plan: Plan, program: Program, budgets: Sequence[int], played: Timeline) -> Plan:
    """The plan with its limits of runs in flight tightened to those it reaches, where that gives the same step."""
    held = map(most_in_flight, played.lists)
    stages = tuple(replace(s, in_flight=most) for s, most in zip(plan.predicted.stages, held, strict=True))
    found, _ = nearly_predicted(replace(plan, tasks=()).with_prediction(stages=stages), program, budgets)
    same = found.predicted.step_s <= plan.predicted.step_s and found.predicted.peak_bytes <= plan.predicted.peak_bytes
    return found if same else plan


def _run_bytes(stage: StagePrediction) -> int:
    """Resident bytes of one run of one micro-batch."""
    return stage.resident_bytes // len(stage.forward_s)


def _room(stage: StagePrediction, microbatches: int, limit: int) -> int:
    """Runs of micro-batches that a stage has memory for, besides what it holds for other purposes."""
    most, each = microbatches * len(stage.forward_s), _run_bytes(stage)
    other = max(stage.transient_bytes, stage.peak_bytes - stage.static_bytes - stage.in_flight * each)
    return min(most, (limit - stage.static_bytes - other) // each) if each else most
