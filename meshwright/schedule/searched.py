"""An order found for the durations at hand: list scheduling under several rules, the best of them.

Each stage, whenever it is free, takes of the tasks whose inputs have come: a backward before a forward, a forward only
while fewer micro-batches are in flight than it may hold, and a weight half where it would wait anyway. The rules differ
in how long a wait must be to put a weight half into it, in whether backwards are split at all, in whether a forward
may go before a backward that comes a little later, and in whether a stage runs further ahead than 1F1B would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import product
from math import inf

from meshwright.errors import PlanError
from meshwright.plan.tasks import Order, Task
from meshwright.schedule.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of each run for one micro-batch; transfers between two runs, one way, by their positions."""

    forward_s: tuple[float, ...]
    backward_input_s: tuple[float, ...]
    backward_weight_s: tuple[float, ...]
    transfer_s: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def of(self, task: Task) -> float:
        if task.kind == "forward":
            return self.forward_s[task.run]
        first = self.backward_input_s[task.run] if task.kind != "backward_weight" else 0.0
        return first + (self.backward_weight_s[task.run] if task.kind != "backward_input" else 0.0)


@dataclass(frozen=True, slots=True)
class Rule:
    """split: backwards in halves. gap: a wait of this part of a weight half is filled with one. patient: a stage waits
    for a backward rather than begin a forward that would delay it. narrow: no more forwards ahead of the backwards, or
    of their input halves, than there are stages from this one on."""

    split: bool
    gap: float
    patient: bool
    narrow: bool


RULES = tuple(Rule(*choice) for choice in product((True, False), (0.0, 0.5, 1.0), (False, True), (False, True)))


LONG = 4
"""Micro-batches a stage; of more, the rule is taken that is best for so many."""


def searched(pipeline: Pipeline, durations: Durations, in_flight: Sequence[int], split: bool = True) -> Order:
    """The fastest order that the rules find; `in_flight`: runs of micro-batches each stage may hold."""
    rules = [rule for rule in RULES if (split or not rule.split) and (rule.split or not rule.gap)]
    short = replace(pipeline, microbatches=min(pipeline.microbatches, LONG * pipeline.stages))
    found = [(*_Search(short, durations, in_flight, rule).run(), rule) for rule in rules]
    _, best, rule = min(found, key=lambda entry: entry[0])
    if best is not None and short.microbatches < pipeline.microbatches:
        _, best = _Search(pipeline, durations, in_flight, rule).run()
    if best is None:
        raise PlanError(f"in flight {list(in_flight)}", "room for one micro-batch in each of a stage's runs")
    return best


class _Search:
    def __init__(self, pipeline: Pipeline, durations: Durations, in_flight: Sequence[int], rule: Rule) -> None:
        self.pipeline, self.durations, self.limits, self.rule = pipeline, durations, in_flight, rule
        self.stage_of = [run.stage for run in pipeline.runs]
        self.stages = pipeline.stages
        pairs = {(pipeline.run_of(a), pipeline.run_of(b)) for a, b in pipeline.all_reads()}
        edges = sorted((a, b) for a, b in pairs if a != b)
        self.after: list[list[int]] = [[b for a, b in edges if a == run] for run in range(len(pipeline.runs))]
        self.ahead: list[list[int]] = [[a for a, b in edges if b == run] for run in range(len(pipeline.runs))]
        self.free = [0.0] * self.stages
        self.held = [0] * self.stages
        self.lead = [0] * self.stages
        self.open: list[dict[str, list[tuple[tuple[int, int, int], float, Task]]]] = [
            {"forward": [], "backward": [], "backward_weight": []} for _ in range(self.stages)
        ]
        self.missing: dict[tuple[bool, int, int], int] = {}
        self.ready_s: dict[tuple[bool, int, int], float] = {}
        self.tasks: list[list[Task]] = [[] for _ in range(self.stages)]
        self.heap: list[tuple[float, int]] = []
        self.wake_s = [inf] * self.stages
        self.wire_s: dict[tuple[int, int, bool], float] = {}

    def run(self) -> tuple[float, Order | None]:
        for microbatch in range(self.pipeline.microbatches):
            for run in range(len(self.pipeline.runs)):
                self.missing[True, run, microbatch] = len(self.ahead[run])
                self.missing[False, run, microbatch] = len(self.after[run]) + 1
                if not self.ahead[run]:
                    self._offer(Task("forward", run, microbatch), 0.0)
        while self.heap:
            start_s, stage = heappop(self.heap)
            if start_s != self.wake_s[stage]:
                continue  # it has been woken sooner
            self.wake_s[stage] = inf
            found = self._choose(stage)
            if found is not None and found[0] <= start_s:
                self._take(stage, *found)
                found = self._choose(stage)
            if found is not None:
                self._wake(stage, found[0])
        count = sum(map(len, self.tasks))
        whole = count == len(self.pipeline.runs) * self.pipeline.microbatches * (3 if self.rule.split else 2)
        return (max(self.free), tuple(map(tuple, self.tasks))) if whole else (inf, None)

    def _offer(self, task: Task, ready_s: float) -> None:
        stage = self.stage_of[task.run]
        around = task.microbatch // self.stages
        forward = task.kind == "forward"
        key = (around, task.run if forward else -task.run, task.microbatch)
        name = task.kind if task.kind in ("forward", "backward_weight") else "backward"
        heappush(self.open[stage][name], (key, ready_s, task))
        self._wake(stage, max(self.free[stage], ready_s))

    def _wake(self, stage: int, at_s: float) -> None:
        if at_s < self.wake_s[stage]:
            self.wake_s[stage] = at_s
            heappush(self.heap, (at_s, stage))

    def _choose(self, stage: int) -> tuple[float, Task] | None:
        """When the stage begins which task next, by what is known now."""
        queues, free_s = self.open[stage], self.free[stage]
        backward_s = max(free_s, queues["backward"][0][1]) if queues["backward"] else inf
        forward_s = inf
        if queues["forward"] and self.held[stage] < self.limits[stage] and not self._too_far(stage):
            forward_s = max(free_s, queues["forward"][0][1])
            if self.rule.patient and backward_s < forward_s + self.durations.of(queues["forward"][0][2]):
                forward_s = inf
        start_s = min(backward_s, forward_s)
        if queues["backward_weight"]:
            task = queues["backward_weight"][0][2]
            wait_s = start_s - free_s
            if wait_s > 0 and wait_s >= self.rule.gap * self.durations.of(task):
                return free_s, task
        if start_s == inf:
            return None
        return start_s, (queues["backward"] if backward_s <= forward_s else queues["forward"])[0][2]

    def _too_far(self, stage: int) -> bool:
        ahead = len(self.pipeline.runs) - stage
        return self.rule.narrow and self.lead[stage] >= ahead

    def _take(self, stage: int, start_s: float, task: Task) -> None:
        name = task.kind if task.kind in ("forward", "backward_weight") else "backward"
        heappop(self.open[stage][name])
        self.tasks[stage].append(task)
        end_s = self.free[stage] = start_s + self.durations.of(task)
        self.held[stage] += (task.kind == "forward") - (task.kind in ("backward", "backward_weight"))
        self.lead[stage] += (task.kind == "forward") - (task.kind in ("backward", "backward_input"))
        run, microbatch = task.run, task.microbatch
        if task.kind == "forward":
            for other in self.after[run]:
                self._arrive(True, other, microbatch, self._sent(end_s, run, other, True))
            self._arrive(False, run, microbatch, end_s)
        elif task.kind in ("backward", "backward_input"):
            for other in self.ahead[run]:
                self._arrive(False, other, microbatch, self._sent(end_s, other, run, False))
            if task.kind == "backward_input":
                self._offer(Task("backward_weight", run, microbatch), end_s)

    def _sent(self, at_s: float, run: int, other: int, forward: bool) -> float:
        """When a message between two runs is over: one at a time goes from a stage to another."""
        wire = (self.stage_of[run], self.stage_of[other], forward)
        over_s = max(at_s, self.wire_s.get(wire, 0.0)) + self.durations.transfer_s.get((run, other), 0.0)
        self.wire_s[wire] = over_s
        return over_s

    def _arrive(self, forward: bool, run: int, microbatch: int, at_s: float) -> None:
        key = (forward, run, microbatch)
        self.ready_s[key] = max(at_s, self.ready_s.get(key, 0.0))
        self.missing[key] -= 1
        if not self.missing[key]:
            kind = "forward" if forward else "backward_input" if self.rule.split else "backward"
            self._offer(Task(kind, run, microbatch), self.ready_s[key])
