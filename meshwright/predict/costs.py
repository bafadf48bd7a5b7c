"""Costs of a plan for the simulator: its segments and messages, from the plan alone."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.predict.pieces import Piece, stage_pieces
from meshwright.predict.transfers import transfers
from meshwright.predict.ways import bare, stage_ways, way_of
from meshwright.schedule import Pipeline
from meshwright.simulate import Costs, SegmentCost


def stage_costs(plan: Plan, program: Program, number: int, exact: bool = True) -> list[SegmentCost]:
    """Costs of the segments of stage `number`.

    exact: bytes are read off traced pairs, which they are in any case where a segment recomputes.
    """
    return _hosted(*_device_costs(plan, program, number, exact))


def _device_costs(
    plan: Plan, program: Program, number: int, exact: bool
) -> tuple[list[SegmentCost], list[Piece], list[float]]:
    """(costs of a stage's segments without the host, their pieces, seconds that each recomputes)."""
    stage, micro = plan.stages[number], plan.microbatches
    pieces = stage_pieces(plan, program, number)
    if plan.compile and exact:
        return _compiled_costs(plan, program, number, pieces)
    choices = [plan.choice(index) for index in stage.segments]
    if not exact and all(choice == bare(choice) for choice in choices):
        return [piece.cost(micro) for piece in pieces], pieces, [0.0] * len(pieces)
    ways = stage_ways(plan, program, stage, few=True)
    found, recomputed = [], []
    for index, piece, choice, options in zip(stage.segments, pieces, choices, ways, strict=True):
        wanted = (choice.recompute, choice.keep, choice.chunks)
        kept = next((one for one in options if (one.recompute, one.keep, one.chunks) == wanted), None)
        if kept is None and choice == bare(choice):  # another way is no slower and holds less
            found.append(piece.cost(micro))
            recomputed.append(0.0)
            continue
        if kept is None and choice.chunks > 1:
            raise PlanError(
                f"layer {program.segments[index].name} runs backward in {choice.chunks} chunks",
                f"one of its {len(options)} ways between keeping all and recomputing all",
                "undo the edit, or plan again",
            )
        kept = kept or way_of(plan, program, stage, index)
        found.append(piece.cost(micro, options, kept))
        recomputed.append(max(0.0, kept.seconds - options[0].seconds))
    return found, pieces, recomputed


def _compiled_costs(
    plan: Plan, program: Program, number: int, pieces: list[Piece]
) -> tuple[list[SegmentCost], list[Piece], list[float]]:
    """`_device_costs` of compiled segments: seconds of traced pairs, recomputation included."""
    stage, found, traced = plan.stages[number], [], []
    for index, piece in zip(stage.segments, pieces, strict=True):
        kept, whole = way_of(plan, program, stage, index), way_of(plan, program, stage, index, whole=True)
        traced.append(piece.traced(kept))
        cost, recomputes = traced[-1].cost(plan.microbatches), bool(plan.choice(index).recompute)
        recompute_s = (
            min(max(0.0, kept.seconds - whole.seconds), traced[-1].point.backward_input_s) if recomputes else 0.0
        )
        made = replace(
            cost,
            backward_input_s=cost.backward_input_s - recompute_s,
            recompute_s=recompute_s,
            resident_bytes=kept.resident_bytes,
            forward_transient_bytes=kept.forward_transient_bytes + piece.gathered,
            backward_transient_bytes=kept.backward_transient_bytes + piece.gathered,
            restored_bytes=max(0, whole.resident_bytes - kept.resident_bytes),
        )
        found.append(made)
    return found, traced, [0.0] * len(found)


def _hosted(costs: list[SegmentCost], pieces: list[Piece], recompute_s: list[float]) -> list[SegmentCost]:
    """The costs of a stage whose device waits for kernel launches are the host's seconds."""
    if not any(piece.point.forward_host_s or piece.point.step_host_s for piece in pieces):
        return costs
    launched = []
    for cost, piece, more_s in zip(costs, pieces, recompute_s, strict=True):
        point, reruns = piece.point, more_s / piece.point.forward_s if piece.point.forward_s else 0.0
        forward_s, backward_s = point.forward_host_s * (1.0 + reruns), point.backward_host_s
        launched.append(
            replace(cost, forward_host_s=forward_s, backward_host_s=backward_s, step_host_s=point.step_host_s)
        )
    host_s = sum(cost.forward_host_s + cost.backward_host_s for cost in launched)
    device_s = sum(cost.forward_s + cost.backward_s + cost.recompute_s for cost in launched)
    slower = max(1.0, host_s / max(device_s, 1e-30))
    more_s = max(0.0, sum(cost.step_host_s for cost in launched) - sum(cost.update_s for cost in launched))
    if slower > 1.0:
        launched = [cost.scaled(slower) for cost in launched]
    return [replace(launched[0], step_s=launched[0].step_s + more_s), *launched[1:]] if more_s else launched


def plan_costs(plan: Plan, program: Program, pipeline: Pipeline, exact: bool = True, overlap: bool = True) -> Costs:
    """Costs of all segments and messages of a plan.

    A smaller last micro-batch has seconds of its own; its bytes are counted as those of the others.
    overlap: gathers and reductions overlap compute, as they do when the plan is run.
    """
    segments = [cost for number in range(len(plan.stages)) for cost in stage_costs(plan, program, number, exact)]
    ranks = [group[0].mesh.world_size for group in plan.groups]
    found = Costs(segments, transfers(plan, program, pipeline), overlap, ranks=ranks)
    smaller = plan.remainder
    if smaller is None:
        return found
    last = [cost for number in range(len(plan.stages)) for cost in _smaller(plan, smaller, program, number, exact)]
    return replace(found, last=Costs(last, transfers(smaller, program, pipeline)))


def _smaller(plan: Plan, smaller: Plan, program: Program, number: int, exact: bool) -> list[SegmentCost]:
    """Costs of a stage in a smaller last micro-batch; recomputation shrinks as forward does."""
    if plan.compile and exact:
        return _smaller_compiled(plan, smaller, program, number)
    full, _, recomputed = _device_costs(plan, program, number, exact)
    pieces, costs, less = stage_pieces(smaller, program, number), [], []
    for other, piece, more_s in zip(full, pieces, recomputed, strict=True):
        own = piece.cost(plan.microbatches)
        less.append(more_s * own.forward_s / other.forward_s if other.forward_s else 0.0)
        inside_s = 0.0 if other.recompute_s else less[-1]
        made = replace(
            other,
            forward_s=own.forward_s,
            backward_input_s=own.backward_input_s + inside_s,
            backward_weight_s=own.backward_weight_s,
            recompute_s=less[-1] - inside_s,
        )
        costs.append(made)
    return _hosted(costs, pieces, less)


def _smaller_compiled(plan: Plan, smaller: Plan, program: Program, number: int) -> list[SegmentCost]:
    """`_smaller` of compiled segments: seconds of pairs traced at the smaller size."""
    full, _, _ = _device_costs(plan, program, number, True)
    less, pieces, recomputed = _device_costs(smaller, program, number, True)
    costs = [
        replace(
            other,
            forward_s=own.forward_s,
            backward_input_s=own.backward_input_s,
            backward_weight_s=own.backward_weight_s,
            recompute_s=own.recompute_s,
        )
        for other, own in zip(full, less, strict=True)
    ]
    return _hosted(costs, pieces, recomputed)
