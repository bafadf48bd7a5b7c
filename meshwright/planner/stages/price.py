"""The simulated step of a candidate pipeline, each run of segments played as one segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from meshwright.caches import CACHES
from meshwright.planner.effort import FEW
from meshwright.planner.stages.problem import PlacedRun, StageProblem
from meshwright.schedule import ORDERS, Durations, Lists, Pipeline, Run, lists, searched
from meshwright.schedule.messages import Messages, read_messages
from meshwright.schedule.orders import SPLIT
from meshwright.simulate import Costs, SegmentCost, Timeline, Transfer, simulate

Played = tuple[Lists, Messages]


def price_pipeline(
    problem: StageProblem, runs: Sequence[PlacedRun], schedule: str, microbatches: int
) -> Timeline | None:
    """The simulated step, or None where it does not fit the memory. Long steps are extrapolated from shorter ones."""
    costs = _costs(problem, runs, schedule, microbatches)
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
    played, messages = _lists(problem, runs, costs, schedule, microbatches)
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


def _lists(problem: StageProblem, runs: Sequence[PlacedRun], costs: Costs, schedule: str, microbatches: int) -> Played:
    gathered = frozenset(i for i, run in enumerate(runs) if run.point.cost.gather_params_s)
    restored = frozenset(i for i, cost in enumerate(costs.segments) if cost.restored_bytes)
    stages = tuple(run.stage for run in runs)
    if schedule != "searched":
        return _lists_by_name(stages, gathered, restored, schedule, microbatches)
    made = _pipeline(stages, gathered, restored, microbatches)
    transfers = {key[0]: transfer.seconds + transfer.latency_s for key, transfer in costs.transfers.items()}
    durations = Durations(
        tuple(run.point.cost.forward_s for run in runs),
        tuple(run.point.cost.backward_input_s for run in runs),
        tuple(run.point.cost.backward_weight_s for run in runs),
        {(i, i + 1): seconds for i, seconds in transfers.items()},
    )
    found = lists(made, searched(made, durations, room(problem, runs, costs, microbatches)))
    return found, read_messages(found)


def _pipeline(
    stages: tuple[int, ...], gathered: frozenset[int], restored: frozenset[int], microbatches: int
) -> Pipeline:
    runs = tuple(Run(i, i + 1, stage) for i, stage in enumerate(stages))
    return Pipeline(runs, microbatches, gathered=gathered, recomputed=restored)


@CACHES.memoized(maxsize=64)
def _lists_by_name(
    stages: tuple[int, ...], gathered: frozenset[int], restored: frozenset[int], schedule: str, microbatches: int
) -> Played:
    made = _pipeline(stages, gathered, restored, microbatches)
    found = lists(made, ORDERS[schedule](made))
    return found, read_messages(found)


def room(problem: StageProblem, runs: Sequence[PlacedRun], costs: Costs, microbatches: int) -> list[int]:
    """Runs of micro-batches that each stage has memory for, besides its largest transient and its buffers."""
    found = []
    for stage in range(1 + max(run.stage for run in runs)):
        own = [(i, run) for i, run in enumerate(runs) if run.stage == stage]
        limit = problem.meshes[own[0][1].mesh].memory_bytes
        points = [run.point.cost for _, run in own]
        fixed = sum(cost.static_bytes for cost in points)
        fixed += max(max(cost.forward_transient_bytes, cost.backward_transient_bytes) for cost in points)
        for (_, source, target), transfer in costs.transfers.items():
            many = microbatches if transfer.kept else 2
            fixed += (
                many * transfer.sent_bytes if source == stage else 2 * transfer.received_bytes if target == stage else 0
            )
        each = max(cost.resident_bytes for cost in points)
        most = microbatches * len(own)
        found.append(max(len(own), min(most, (limit - fixed) // each) if each else most))
    return found


def _costs(problem: StageProblem, runs: Sequence[PlacedRun], schedule: str, microbatches: int) -> Costs:
    transfers: dict[tuple[int, int, int], Transfer] = {}
    placed = problem.placed(runs, microbatches) if problem.placed else None
    for i, (run, after) in enumerate(pairwise(runs)):
        if run.stage != after.stage:
            found = placed[i] if placed is not None else None
            if found is None:
                ends = (run.mesh, run.point.leave, after.mesh, after.point.enter)
                found = problem.crossing(run.end, *ends, microbatches)
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
