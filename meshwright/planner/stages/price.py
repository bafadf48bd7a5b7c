"""The simulated step of a candidate pipeline, each run of segments played as one segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from meshwright.caches import CACHES
from meshwright.planner.effort import FEW
from meshwright.planner.stages.problem import FREE, PlacedRun, StageProblem
from meshwright.schedule import ORDERS, Lists, Pipeline, Run, lists
from meshwright.schedule.messages import Messages, read_messages
from meshwright.schedule.orders import SPLIT
from meshwright.simulate import Costs, SegmentCost, Timeline, Transfer, simulate


def price_pipeline(
    problem: StageProblem, runs: Sequence[PlacedRun], schedule: str, microbatches: int
) -> Timeline | None:
    """The simulated step, or None where it does not fit the memory. Long steps are extrapolated from shorter ones."""
    costs = pipeline_costs(problem, runs, schedule, microbatches)
    stages = 1 + max(run.stage for run in runs)
    short, period = FEW * stages, stages
    if microbatches <= short + period:
        found = _play(problem, runs, costs, schedule, microbatches)
    else:
        rest = (microbatches - short) % period
        less, found = (_play(problem, runs, costs, schedule, count) for count in (short + rest, short + rest + period))
        found = _longer(less, found, (microbatches - short - rest - period) // period)
    for run in runs:
        if found.stages[run.stage].peak_bytes > problem.meshes[run.mesh].memory_bytes:
            return None
    return found


def _play(problem: StageProblem, runs: Sequence[PlacedRun], costs: Costs, schedule: str, microbatches: int) -> Timeline:
    gathered = frozenset(i for i, run in enumerate(runs) if run.point.cost.gather_params_s)
    restored = frozenset(i for i, cost in enumerate(costs.segments) if cost.restored_bytes)
    stages = tuple(run.stage for run in runs)
    played, messages = _lists(stages, gathered, restored, schedule, microbatches)
    return simulate(played, costs, spans=False, messages=messages)


def _longer(less: Timeline, more: Timeline, times: int) -> Timeline:
    """The step with so many more rounds of micro-batches, each as long as the difference of the two."""
    stages = tuple(
        replace(
            b,
            end_s=b.end_s + times * (b.end_s - a.end_s),
            busy_s=b.busy_s + times * (b.busy_s - a.busy_s),
            exposed_s=b.exposed_s + times * (b.exposed_s - a.exposed_s),
            bubble_s=b.bubble_s + times * (b.bubble_s - a.bubble_s),
        )
        for a, b in zip(less.stages, more.stages, strict=True)
    )
    return replace(more, step_s=more.step_s + times * (more.step_s - less.step_s), stages=stages)


@CACHES.memoized(maxsize=64)
def _lists(
    stages: tuple[int, ...], gathered: frozenset[int], restored: frozenset[int], schedule: str, microbatches: int
) -> tuple[Lists, Messages]:
    runs = tuple(Run(i, i + 1, stage) for i, stage in enumerate(stages))
    made = Pipeline(runs, microbatches, gathered=gathered, recomputed=restored)
    found = lists(made, ORDERS[schedule](made))
    return found, read_messages(found)


def pipeline_costs(problem: StageProblem, runs: Sequence[PlacedRun], schedule: str, microbatches: int) -> Costs:
    transfers: dict[tuple[int, int, int], Transfer] = {}
    placed = problem.placed(runs, microbatches) if problem.placed else None
    for i, (run, after) in enumerate(pairwise(runs)):
        if run.stage != after.stage:
            found = (placed[i] if placed is not None else None) or FREE
            transfers[i, run.stage, after.stage] = found.forward
            transfers[i, after.stage, run.stage] = found.backward
    ranks = {run.stage: problem.meshes[run.mesh].ranks for run in runs}
    halves = schedule in SPLIT or schedule == "searched"
    segments = [_halved(run.point.cost) if halves else replace(run.point.cost, restored_bytes=0) for run in runs]
    return Costs(segments, transfers, problem.overlap, ranks=[ranks[stage] for stage in sorted(ranks)])


def _halved(cost: SegmentCost) -> SegmentCost:
    """The cost where backward is split: recomputed values stay from the input half to the weight half."""
    restored = cost.restored_bytes or 0
    work = cost.backward_transient_bytes + restored
    return replace(cost, restored_bytes=restored, backward_transient_bytes=work)
