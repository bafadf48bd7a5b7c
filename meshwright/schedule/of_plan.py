"""The lists of a plan: what every physical stage does in a step, from the plan alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.caches import CACHES
from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Instruction, Plan
from meshwright.plan.instruction import PER_MICROBATCH
from meshwright.plan.tasks import Order, check_tasks, show_tasks
from meshwright.schedule.check import verify_lists
from meshwright.schedule.lists import Lists, lists
from meshwright.schedule.messages import Messages, read_messages
from meshwright.schedule.one_stage import plan_instructions
from meshwright.schedule.orders import ORDERS
from meshwright.schedule.pipeline import Pipeline, Run
from meshwright.schedule.reads import reads_of
from meshwright.schedule.searched import Durations, searched


def plan_pipeline(plan: Plan, program: Program) -> Pipeline:
    """Runs are the plan's stages; a run's stage is its number in `plan.groups`."""
    runs = tuple(Run(stage.first, stage.end, plan.stage_at(stage.mesh.ranks[0])) for stage in plan.stages)
    types = {parameter.name: parameter.type.dtype for parameter in program.parameters}
    moved = {name for name, entry in plan.parameters.items() if entry.moves(types[name])}
    again = {name for name, entry in plan.parameters.items() if entry.reshard_after_forward}
    gathered, regathered = set[int](), set[int]()
    for stage in plan.stages:
        for index in stage.segments:
            own = set(program.segments[index].params)
            homely = own - set(stage.tied_replicas)
            if moved & homely or own & set(stage.tied_replicas):
                gathered.add(index)
            if again & homely:
                regathered.add(index)
    recomputed = {index for index in range(len(plan.segments)) if plan.choice(index).recompute}
    found = Pipeline(
        runs,
        plan.microbatches,
        reads_of(program),
        frozenset(plan.routed_via_stages),
        frozenset(gathered),
        frozenset(regathered),
        frozenset(recomputed),
    )
    found.verify()
    return found


def plan_lists(plan: Plan, program: Program) -> Lists:
    """One list a physical stage, in the order of `plan.groups`; all ranks of a stage run the same."""
    if len(plan.stages) == 1:
        return (plan_instructions(plan, program),)
    return _lists(plan.schedule, tuple(plan.tasks), plan_pipeline(plan, program))


@CACHES.memoized(maxsize=4)
def _lists(schedule: str, tasks: tuple[str, ...], pipeline: Pipeline) -> Lists:
    """A searched schedule stores its tasks. A search asks for the same lists again, at other costs."""
    if schedule in ORDERS:
        return lists(pipeline, ORDERS[schedule](pipeline))
    if schedule != "searched":
        raise PlanError(f"schedule is {schedule!r}", f"one of {', '.join(ORDERS)}, searched", "set it back")
    if not tasks:
        raise PlanError("a searched schedule without its tasks", "a plan as it was made", "plan again")
    runs, micro = [pipeline.runs_of(stage) for stage in range(pipeline.stages)], pipeline.microbatches
    found = lists(pipeline, check_tasks(tasks, runs, micro))
    verify_lists(found, reads=pipeline.reads, buffers=micro * len(pipeline.runs))
    return found


def plan_messages(plan: Plan, pipeline: Pipeline) -> Messages:
    """The messages of a pipeline's `plan_lists`."""
    return _messages(plan.schedule, tuple(plan.tasks), pipeline)


@CACHES.memoized(maxsize=4)
def _messages(schedule: str, tasks: tuple[str, ...], pipeline: Pipeline) -> Messages:
    """Remembered as the lists are."""
    return read_messages(_lists(schedule, tasks, pipeline), pipeline.reads)


def with_tasks(plan: Plan, pipeline: Pipeline) -> Plan:
    """The plan with the order of its searched schedule, found from its own predictions, where it has none yet."""
    if plan.schedule != "searched" or plan.tasks:
        return plan
    return replace(plan, tasks=show_tasks(_search(plan, pipeline)))


def _search(plan: Plan, pipeline: Pipeline) -> Order:
    if len(plan.predicted.stages) != pipeline.stages:
        raise PlanError("a searched schedule without predictions of its stages", "a plan as it was made", "plan again")
    rows: list[tuple[float, float, float, float]] = []
    at = [0] * pipeline.stages
    for run in pipeline.runs:
        stage, place = plan.predicted.stages[run.stage], at[run.stage]
        at[run.stage] += 1
        columns = (stage.forward_s, stage.backward_input_s, stage.backward_weight_s, stage.send_s)
        rows.append((columns[0][place], columns[1][place], columns[2][place], columns[3][place]))
    transfers = {(i, i + 1): row[3] for i, row in enumerate(rows[:-1])}
    forward_s, input_s, weight_s = (tuple(row[k] for row in rows) for k in range(3))
    in_flight = [stage.in_flight for stage in plan.predicted.stages]
    return searched(pipeline, Durations(forward_s, input_s, weight_s, transfers), in_flight)


def forward_only(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """What of a list evaluating takes: forwards, what they read and send, and the parameters they need. Where a forward
    finds what the backward before it gathered, it gathers for itself."""
    found: list[Instruction] = []
    computes = [one for one in instructions if one.kind in PER_MICROBATCH]
    following: dict[int | None, list[str]] = {}
    for one in computes:
        following.setdefault(one.segment, []).append(one.kind)
    done = dict.fromkeys(following, 0)
    missing = {one.segment for one in instructions if one.kind == "gather"}
    for one in instructions:
        kinds, at = following.get(one.segment, []), done.get(one.segment, 0)
        if one.kind in PER_MICROBATCH:
            done[one.segment] += 1
        if one.kind == "gather" and kinds[at] == "forward":
            missing.discard(one.segment)
        elif one.kind == "free" and kinds[at - 1] == "forward":
            missing.add(one.segment)
        elif one.kind == "forward" and one.segment in missing:
            found.append(Instruction("gather", one.segment))
            missing.discard(one.segment)
        elif one.kind not in ("forward", "send", "receive"):
            continue
        found.append(one)
    return tuple(found)
