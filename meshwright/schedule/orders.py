"""Which stage computes what in which order: GPipe, 1F1B, interleaved 1F1B and zero-bubble, for any sizes.

A Task is a run of segments for one micro-batch: forward, or backward whole or in halves. With K stages, stage p:

*GPipe*: all forwards, then all backwards. *1F1B*: K - p forwards, then a backward and a forward in turns: of M
micro-batches at most K - p are in flight. *Interleaved 1F1B*: v runs a stage, micro-batches in rounds of about K, each
round through all runs; (v - 1) rounds and 2 (K - 1 - p) tasks before the first backward. *Zero-bubble* (H1): 1F1B whose
weight halves wait until the last stages' idle ends: stage p puts off p of them, so that each stage has K in flight.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.errors import PlanError
from meshwright.plan.tasks import Order, Task
from meshwright.schedule.pipeline import Pipeline


def gpipe(pipeline: Pipeline) -> Order:
    batches = range(pipeline.microbatches)
    found = []
    for stage in range(pipeline.stages):
        runs = pipeline.runs_of(stage)
        forwards = [Task("forward", run, m) for run in runs for m in batches]
        found.append((*forwards, *(Task("backward", run, m) for run in reversed(runs) for m in batches)))
    return tuple(found)


def one_f_one_b(pipeline: Pipeline) -> Order:
    _check_one_run(pipeline, "1f1b", "interleaved")
    found = []
    for stage in range(pipeline.stages):
        (run,) = pipeline.runs_of(stage)
        forwards = [Task("forward", run, m) for m in range(pipeline.microbatches)]
        backwards = [Task("backward", run, m) for m in range(pipeline.microbatches)]
        ahead = in_flight_of("1f1b", stage, pipeline.stages, pipeline.microbatches) - 1
        found.append(_in_turns(forwards, backwards, ahead))
    return tuple(found)


def interleaved(pipeline: Pipeline) -> Order:
    dealt = [run.stage for run in pipeline.runs]
    if len(dealt) % pipeline.stages or dealt != [i % pipeline.stages for i in range(len(dealt))]:
        raise PlanError(f"runs on stages {dealt}", "as many for each stage, dealt round")
    rounds = _rounds(pipeline.microbatches, pipeline.stages)
    found = []
    for stage in range(pipeline.stages):
        runs = pipeline.runs_of(stage)
        forwards = [Task("forward", run, m) for batches in rounds for run in runs for m in batches]
        backwards = [Task("backward", run, m) for batches in rounds for run in reversed(runs) for m in batches]
        ahead = _interleaved_ahead(stage, pipeline.stages, pipeline.microbatches, len(runs))
        found.append(_in_turns(forwards, backwards, ahead))
    return tuple(found)


def zero_bubble(pipeline: Pipeline) -> Order:
    _check_one_run(pipeline, "zero-bubble", "interleaved")
    count = pipeline.microbatches
    found = []
    for stage in range(pipeline.stages):
        (run,) = pipeline.runs_of(stage)
        warm = min(count, pipeline.stages - stage)
        tasks = [Task("forward", run, m) for m in range(warm)]
        for m in range(count):
            tasks.append(Task("backward_input", run, m))
            if m >= stage:
                tasks.append(Task("backward_weight", run, m - stage))
            if warm + m < count:
                tasks.append(Task("forward", run, warm + m))
        tasks += [Task("backward_weight", run, m) for m in range(max(0, count - stage), count)]
        found.append(tuple(tasks))
    return tuple(found)


class Orders(dict[str, Callable[[Pipeline], Order]]):
    """Orders that need no more than a pipeline, by name."""

    def __missing__(self, name: object) -> Callable[[Pipeline], Order]:
        raise PlanError(
            f"schedule {name!r}", f"one of {', '.join(self)}", SEARCHED if name == "searched" else "name one of these"
        )


SEARCHED = "call searched(pipeline, durations, in_flight), which makes an order of its own"
ORDERS = Orders({"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved, "zero-bubble": zero_bubble})
SPLIT = frozenset({"zero-bubble"})
"""Orders whose backward comes in halves."""


def in_flight_of(schedule: str, stage: int, stages: int, microbatches: int, runs: int = 1) -> int:
    """The most runs of micro-batches that a stage holds at once; with one run a stage, the most micro-batches."""
    if schedule == "gpipe":
        return microbatches * runs
    if schedule == "1f1b":
        return min(microbatches, stages - stage)
    if schedule == "interleaved":
        return min(microbatches * runs, _interleaved_ahead(stage, stages, microbatches, runs) + 1)
    if schedule == "zero-bubble":
        return min(microbatches, stages)
    todo = "a searched order holds what it is given" if schedule == "searched" else "name one of these"
    raise PlanError(f"schedule {schedule!r}", f"one of {', '.join(ORDERS)}", todo)


def in_flight_by_run(stage: int, stages: int, microbatches: int, runs: int) -> list[int]:
    """Under `interleaved`, micro-batches that each run of a stage holds when the stage's first backward begins."""
    first = _interleaved_ahead(stage, stages, microbatches, runs) + 1
    forwards = [run for batches in _rounds(microbatches, stages) for run in range(runs) for _ in batches][:first]
    return [forwards.count(run) for run in range(runs)]


def in_flight(schedule: str, stages: int, microbatches: int, runs: int = 1) -> tuple[int, ...]:
    return tuple(in_flight_of(schedule, stage, stages, microbatches, runs) for stage in range(stages))


def _interleaved_ahead(stage: int, stages: int, microbatches: int, runs: int) -> int:
    """Forwards before the first pair of a forward and a backward."""
    longest = max(map(len, _rounds(microbatches, stages)))
    return min((runs - 1) * longest + 2 * (stages - 1 - stage), microbatches * runs - 1)


def _rounds(microbatches: int, stages: int) -> list[range]:
    """As many rounds as have a micro-batch for every stage; what is over makes some of them longer by one."""
    count = max(1, microbatches // stages)
    ends = [microbatches * (i + 1) // count for i in range(count)]
    return [range(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def _in_turns(forwards: list[Task], backwards: list[Task], ahead: int) -> tuple[Task, ...]:
    """`ahead` forwards, then a forward and a backward in turns, then the other backwards."""
    tasks = forwards[:ahead]
    pairs = zip(forwards[ahead:], backwards, strict=False)
    tasks += [task for pair in pairs for task in pair]
    return (*tasks, *backwards[len(forwards) - ahead :])


def _check_one_run(pipeline: Pipeline, name: str, instead: str) -> None:
    if len(pipeline.runs) != pipeline.stages:
        raise PlanError(f"{len(pipeline.runs)} runs on {pipeline.stages} stages under {name}", "one a stage", instead)
