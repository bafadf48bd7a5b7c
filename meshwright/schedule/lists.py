"""An order of tasks becomes one list of Instructions a stage: transfers, gathers, reductions and the step between.

A value is sent as soon as its segment has run. Receives are begun three tasks before the one that waits for them, so
that a message may take as long as these, and stand in the order in which the other side sends: so both ends agree on a
channel that knows no tags. Parameters that are gathered once are gathered first of all, while the first value is on its
way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.plan import Instruction
from meshwright.plan.tasks import Order, Task
from meshwright.schedule.pipeline import Hop, Pipeline

Lists = tuple[tuple[Instruction, ...], ...]
"""What each stage does; all ranks of a stage do the same."""

AHEAD = 3
"""Tasks between the begin of a receive and its use."""

_REVERSE = {"send": "receive", "send_gradient": "receive_gradient"}


def lists(pipeline: Pipeline, order: Order) -> Lists:
    """The Instructions of every stage."""
    ways = _ways(pipeline)
    bodies = [_Body(pipeline, ways, stage, order[stage]).tasks() for stage in range(pipeline.stages)]
    placed = _receives(pipeline, ways, order, bodies)
    found = []
    for stage, body in enumerate(bodies):
        instructions = list(_gathers(pipeline, stage))
        for index, task in enumerate(body):
            instructions += placed[stage].get(index, [])
            instructions += task
        found.append((*instructions, Instruction("step")))
    return tuple(found)


def _gathers(pipeline: Pipeline, stage: int) -> Iterator[Instruction]:
    for run in pipeline.runs_of(stage):
        for segment in pipeline.runs[run].segments:
            if segment in pipeline.gathered - pipeline.regathered:
                yield Instruction("gather", segment)


class _Body:
    """One stage's tasks as instructions, receives aside."""

    def __init__(self, pipeline: Pipeline, ways: dict[Hop, _Way], stage: int, tasks: tuple[Task, ...]) -> None:
        self.pipeline, self.stage, self.order = pipeline, stage, tasks
        self.left = {i: pipeline.microbatches for run in pipeline.runs_of(stage) for i in pipeline.runs[run].segments}
        self.sends: dict[int, list[Hop]] = {}
        self.returns: dict[int, list[Hop]] = {}
        for hop, way in ways.items():
            if hop.source == stage:
                self.sends.setdefault(way.leaves, []).append(hop)
            if hop.target == stage:
                self.returns.setdefault(way.returns, []).append(hop)

    def tasks(self) -> list[list[Instruction]]:
        return [self._task(task) for task in self.order]

    def _task(self, task: Task) -> list[Instruction]:
        segments = self.pipeline.runs[task.run].segments
        found: list[Instruction] = []
        late: list[Instruction] = []
        if task.kind == "forward":
            for segment in segments:
                self._compute(task, segment, found)
            return found
        # Once the gradients that a stage before waits for have been sent; at once where none does.
        waited = task.kind == "backward" and any(segment in self.returns for segment in segments)
        for segment in reversed(segments):
            self._compute(task, segment, found)
            if task.kind != "backward_input":
                self.left[segment] -= 1
                reduces = [] if self.left[segment] else [Instruction("reduce", segment)]
                late += reduces if waited else []
                found += [] if waited else reduces
        return found + late

    def _compute(self, task: Task, segment: int, found: list[Instruction]) -> None:
        again = segment in self.pipeline.regathered and task.kind != "backward_weight"
        if again:
            found.append(Instruction("gather", segment))
        if segment in self.pipeline.recomputed and task.kind in ("backward", "backward_input"):
            found.append(Instruction("recompute", segment, task.microbatch))
        found.append(Instruction(task.kind, segment, task.microbatch))
        if again:
            found.append(Instruction("free", segment))
        if task.kind == "forward":
            for hop in self.sends.get(segment, ()):
                found.append(Instruction("send", hop.segment, task.microbatch, hop.target))
        elif task.kind != "backward_weight":
            for hop in self.returns.get(segment, ()):
                found.append(Instruction("send_gradient", hop.segment, task.microbatch, hop.source))


@dataclass(frozen=True, slots=True)
class _Way:
    """Between which tasks a hop stands: `leaves` and `wanted` name the segments whose forward makes the value ready on
    the source and waits for it on the target; `returns` and `awaited` those whose backward does so for its gradient."""

    leaves: int
    wanted: int
    returns: int
    awaited: int


def _ways(pipeline: Pipeline) -> dict[Hop, _Way]:
    """A stage that passes a value on does so when the first of its segments that could read it has run."""
    stage_of = [run.stage for run in pipeline.runs for _ in run.segments]
    readers: dict[int, set[int]] = {}
    for producer, reader in pipeline.all_reads():
        readers.setdefault(producer, set()).add(reader)
    found = {}
    for hop in pipeline.hops():
        first = {}
        for stage in (hop.source, hop.target):
            own = [i for i in range(hop.segment, pipeline.segments) if stage_of[i] == stage]
            reading = (i for i in own if i == hop.segment or i in readers[hop.segment])
            first[stage] = next(reading, own[0])
        found[hop] = _Way(first[hop.source], first[hop.target], first[hop.target], first[hop.source])
    return found


Channel = tuple[int, int, str]
"""Source, target, and whether values or gradients."""


def _receives(
    pipeline: Pipeline, ways: dict[Hop, _Way], order: Order, bodies: list[list[list[Instruction]]]
) -> list[dict[int, list[Instruction]]]:
    """For each stage: before which of its tasks which receives are begun."""
    places = [_places(pipeline, tasks) for tasks in order]
    found: list[dict[int, list[Instruction]]] = [{} for _ in bodies]
    for (source, target, kind), sent in _channels(bodies).items():
        soonest = len(order[target])
        placed: list[tuple[int, Instruction]] = []
        for instruction in reversed(sent):
            segment, microbatch = instruction.segment, instruction.microbatch
            assert segment is not None
            if kind == "send":
                at = ways[Hop(segment, source, target)].wanted
            else:
                at = ways[Hop(segment, target, source)].awaited
            soonest = min(soonest, max(0, places[target][(kind == "send", at, microbatch)] - AHEAD))
            placed.append((soonest, Instruction(_REVERSE[kind], segment, microbatch, source)))
        for index, received in reversed(placed):
            found[target].setdefault(index, []).append(received)
    return found


def _channels(bodies: list[list[list[Instruction]]]) -> dict[Channel, list[Instruction]]:
    """What goes from stage to stage, in the order in which it is sent."""
    found: dict[Channel, list[Instruction]] = {}
    for source, body in enumerate(bodies):
        for task in body:
            for instruction in task:
                if instruction.kind in _REVERSE:
                    assert instruction.peer is not None
                    found.setdefault((source, instruction.peer, instruction.kind), []).append(instruction)
    return found


def _places(pipeline: Pipeline, tasks: tuple[Task, ...]) -> dict[tuple[bool, int, int | None], int]:
    """(forward or not, segment, micro-batch) -> the index of its task; of a split backward, the input half's."""
    found: dict[tuple[bool, int, int | None], int] = {}
    for index, task in enumerate(tasks):
        if task.kind != "backward_weight":
            for segment in pipeline.runs[task.run].segments:
                found[(task.kind == "forward", segment, task.microbatch)] = index
    return found
