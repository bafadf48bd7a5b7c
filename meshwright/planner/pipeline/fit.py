"""Rematerialisation of a pipeline: what each segment of each stage keeps, chosen on traced pairs.

The memory of a stage is its static bytes, the activations of the micro-batches in flight, and the largest transient.
For every limit on the transient the fastest choice within the rest is exact (`solve_instances`). Whether the pipeline
then fits is read off the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.capture.program import Program
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.generate.program import sharded_segment
from meshwright.plan import Choice, Plan, Stage, StagePrediction
from meshwright.planner.effort import RETRIES, ROUGH
from meshwright.planner.memory.instances import Instance, solve_instances
from meshwright.planner.memory.methods import least_kept, selective_way
from meshwright.predict.pieces import Piece, stage_pieces
from meshwright.predict.stages import held_bytes
from meshwright.predict.step import pipeline_predicted
from meshwright.predict.ways import stage_ways, with_choices
from meshwright.remat.curve import RematPoint
from meshwright.remat.traced import traced_for
from meshwright.schedule.orders import SPLIT
from meshwright.simulate import SegmentCost, Timeline


@dataclass(frozen=True, slots=True)
class _RematOption:
    """An `Option` of `solve_instances` without transient bytes, which `_fastest` counts."""

    seconds: float
    resident_bytes: int
    kept: RematPoint
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0


def fitted(plan: Plan, program: Program, budgets: list[int]) -> Plan | None:
    """The plan with its prediction, recomputing in the stages that do not fit otherwise; None where none fits.

    budgets: bytes of each physical stage. The bytes of a stage that is nearly full are counted exactly.
    """
    found, _ = nearly_predicted(plan, program, budgets)
    rooms, groups = list(budgets), plan.groups
    known: _Known = {}
    for _ in range(RETRIES):
        over = [number for number, stage in enumerate(found.predicted.stages) if stage.peak_bytes > budgets[number]]
        if not over:
            return found
        choices = [found.choice(index) for index in range(len(program.segments))]
        for number in over:
            stage = found.predicted.stages[number]
            recomputes = any(choices[i].recompute for one in groups[number] for i in one.segments)
            over_bytes = stage.peak_bytes - budgets[number]
            deferred = min(plan.microbatches, number) if plan.schedule in SPLIT else 0
            less = over_bytes if recomputes else 0
            made: dict[int, Choice] | None = {}
            while made is not None and all(made[i] == choices[i] for i in made):
                # The current choice exceeds the budget, so the room shrinks until another one is made.
                rooms[number] -= less
                less = 2 * less or over_bytes
                made = _fitted(plan, program, groups[number], stage, rooms[number], deferred, known)
            if made is None:
                return None
            choices = [made.get(index, choice) for index, choice in enumerate(choices)]
        found, _ = pipeline_predicted(with_choices(found, choices), program)
    return None


def checkpointed(plan: Plan, program: Program, budgets: list[int], method: str) -> Plan | None:
    """The plan with every segment checkpointed by a fixed method; None where that does not fit.

    method: `full` or `selective`. As in plans of one stage, `full` lets the last segment keep everything.
    """
    choices = []
    for stage in plan.stages:
        for index, ways in zip(stage.segments, stage_ways(plan, program, stage), strict=True):
            kept = ways[0] if index == len(program.segments) - 1 and method == "full" else least_kept(ways)
            if method == "selective":
                joint = traced_for(stage.mesh.device)(sharded_segment(program, plan, index, plan.microbatch))
                kept = selective_way(joint, NodeCosts(stage.mesh.device, plan.compile, stage.mesh))
            choices.append(kept.on(plan.choice(index)))
    found, _ = pipeline_predicted(with_choices(plan, choices), program)
    over = any(stage.peak_bytes > limit for stage, limit in zip(found.predicted.stages, budgets, strict=True))
    return None if over else found


def nearly_predicted(plan: Plan, program: Program, budgets: Sequence[int]) -> tuple[Plan, Timeline]:
    """`pipeline_predicted`, with bytes of traced pairs only where a stage is nearly full or recomputes."""
    if any(held > limit for held, limit in zip(held_bytes(plan, program), budgets, strict=True)):
        return pipeline_predicted(plan, program)
    found, played = pipeline_predicted(plan, program, exact=False)
    if any(ROUGH * stage.peak_bytes > limit for stage, limit in zip(found.predicted.stages, budgets, strict=True)):
        found, played = pipeline_predicted(plan, program)
    return found, played


_Pairs = list[tuple[Piece, tuple[RematPoint, ...]]]
_Known = dict[object, tuple[_Pairs, list[RematPoint] | None]]
"""Choices by the ids of their pieces and options, which are kept alive so that ids stay unique."""


def _fitted(
    plan: Plan,
    program: Program,
    group: tuple[Stage, ...],
    stage: StagePrediction,
    budget: int,
    deferred: int,
    known: _Known,
) -> dict[int, Choice] | None:
    """The fastest choices, by segment, that keep a physical stage within the budget. Equal stages are fitted once.

    deferred: micro-batches whose weight halves of backward are outstanding.
    """
    where: list[int] = []
    pairs: _Pairs = []
    for place, run in enumerate(plan.stages):
        if any(run is own for own in group):
            where += run.segments
            pairs += zip(stage_pieces(plan, program, place), stage_ways(plan, program, run), strict=True)
    flight = max(1, -(-stage.in_flight // len(group)))
    key = (budget, flight, deferred, tuple((id(piece), id(options)) for piece, options in pairs))
    if key not in known:
        rows = [[(piece.cost(plan.microbatches, options, kept), kept) for kept in options] for piece, options in pairs]
        known[key] = (pairs, _within(rows, flight, deferred, budget))
    best = known[key][1]
    if best is None:
        return None
    return {index: kept.on(plan.choice(index)) for index, kept in zip(where, best, strict=True)}


def _within(
    rows: list[list[tuple[SegmentCost, RematPoint]]], flight: int, deferred: int, budget: int
) -> list[RematPoint] | None:
    """Resident bytes count once for every micro-batch in flight, recomputed values once for every deferred half."""
    static = sum(options[0][0].static_bytes for options in rows)
    best: tuple[float, list[RematPoint]] | None = None
    for transient in sorted({_transient(cost) for options in rows for cost, _ in options}):
        room = budget - static - transient
        found = _fastest(rows, transient, room, flight, deferred) if room > 0 else None
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return best[1] if best else None


def _fastest(
    rows: list[list[tuple[SegmentCost, RematPoint]]], transient: int, room: int, flight: int, deferred: int
) -> tuple[float, list[RematPoint]] | None:
    known: dict[tuple[int, ...], list[_RematOption]] = {}
    instances = []
    for options in rows:
        key = tuple(id(kept) for _, kept in options)
        if key not in known:
            known[key] = [
                _RematOption(_seconds(cost), flight * cost.resident_bytes + deferred * _restored(cost, kept), kept)
                for cost, kept in options
                if _transient(cost) <= transient
            ]
        if not known[key]:
            return None
        instances.append(Instance(known[key]))
    found = solve_instances(instances, room)
    if found is None:
        return None
    picked = [instance.options[place] for instance, place in zip(instances, found.options, strict=True)]
    return found.seconds, [one.kept for one in picked if isinstance(one, _RematOption)]


def _seconds(cost: SegmentCost) -> float:
    return cost.forward_s + cost.backward_s + cost.recompute_s


def _restored(cost: SegmentCost, kept: RematPoint) -> int:
    return cost.restored if kept.recompute else 0


def _transient(cost: SegmentCost) -> int:
    return max(cost.forward_transient_bytes, cost.backward_transient_bytes)
