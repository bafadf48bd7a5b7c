"""A pipeline made to fit: stage by stage, what each segment keeps and what it makes again, on the traced pairs.

A stage holds what it has in flight, and the largest transient on top. For every limit on the transient the fastest
choice within the room that is left is exact (`solve_instances`); the simulator has the last word.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.capture.program import Program
from meshwright.plan import Choice, Plan, StagePrediction
from meshwright.simulate import SegmentCost
from meshwright.solve.memory.chain import Instance, solve_instances
from meshwright.solve.memory.curve import Kept
from meshwright.solve.memory.plan import with_choices
from meshwright.solve.pipeline.costs import stage_pieces
from meshwright.solve.pipeline.plan import predicted
from meshwright.solve.pipeline.ways import stage_ways

ROUNDS = 4


@dataclass(frozen=True, slots=True)
class _Way:
    """An `Option` of `solve_instances` whose transient is counted elsewhere."""

    seconds: float
    resident_bytes: int
    kept: Kept
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0


def fitted(plan: Plan, program: Program, budgets: list[int]) -> Plan | None:
    """The plan with its prediction, recomputing where a stage would not fit otherwise; None where even that does not.
    `budgets`: of each physical stage."""
    found, _ = predicted(plan, program)
    rooms = list(budgets)
    for _ in range(ROUNDS):
        over = [number for number, stage in enumerate(found.predicted.stages) if stage.peak_bytes > budgets[number]]
        if not over:
            return found
        choices = [found.choice(index) for index in range(len(program.segments))]
        for number in over:
            stage = found.predicted.stages[number]
            recomputes = any(choices[i].recompute for one in found.groups[number] for i in one.segments)
            if recomputes:
                rooms[number] -= stage.peak_bytes - budgets[number]
            made = _settled(plan, program, number, stage, rooms[number])
            if made is None:
                return None
            choices = [made.get(index, choice) for index, choice in enumerate(choices)]
        found, _ = predicted(with_choices(found, choices), program)
    return None


def _settled(
    plan: Plan, program: Program, number: int, stage: StagePrediction, budget: int
) -> dict[int, Choice] | None:
    """By segment: the fastest choices that keep a physical stage within the budget."""
    where: list[int] = []
    rows: list[list[tuple[SegmentCost, Kept]]] = []
    for place, run in enumerate(plan.stages):
        if run in plan.groups[number]:
            pieces, ways = stage_pieces(plan, program, place), stage_ways(plan, program, run)
            for index, piece, options in zip(run.segments, pieces, ways, strict=True):
                where.append(index)
                rows.append([(piece.cost(plan.microbatches, options, kept), kept) for kept in options])
    flight = max(1, -(-stage.in_flight // len(plan.groups[number])))
    static = sum(options[0][0].static_bytes for options in rows)
    best: tuple[float, list[Kept]] | None = None
    for transient in sorted({_transient(cost) for options in rows for cost, _ in options}):
        room = (budget - static - transient) // flight
        found = _fastest(rows, transient, room) if room > 0 else None
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    return {
        index: replace(plan.choice(index), recompute=kept.recompute, keep=kept.keep, chunks=kept.chunks)
        for index, kept in zip(where, best[1], strict=True)
    }


def _fastest(rows: list[list[tuple[SegmentCost, Kept]]], transient: int, room: int) -> tuple[float, list[Kept]] | None:
    known: dict[tuple[int, ...], list[_Way]] = {}
    instances = []
    for options in rows:
        key = tuple(id(kept) for _, kept in options)
        if key not in known:
            known[key] = [
                _Way(cost.forward_s + cost.backward_s, cost.resident_bytes, kept)
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
    return found.seconds, [one.kept for one in picked if isinstance(one, _Way)]


def _transient(cost: SegmentCost) -> int:
    return max(cost.forward_transient_bytes, cost.backward_transient_bytes)
