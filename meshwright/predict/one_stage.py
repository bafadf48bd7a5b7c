"""Costs of the segments of a plan of one stage.

On one device, and wherever segments are compiled, seconds are those of traced pairs, kernel by kernel, with the host's
launches. On several devices, eager, they are sums over ops, as in the search for shardings, and recomputation is read
off traced pairs. Bytes are read off traced pairs in all cases.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import ITEM_BYTES, Program
from meshwright.cost.host_link import copies_of
from meshwright.generate.program import sharded_prologue
from meshwright.layout import Layout
from meshwright.plan import Plan
from meshwright.plan.order import gathers_of
from meshwright.predict.chosen import Chosen, chosen_ways
from meshwright.predict.pieces import Piece, setting_of, stage_pieces
from meshwright.price.parameter import chain_uses, local_bytes
from meshwright.price.tied_replica import gradient_bytes
from meshwright.profile.operands import type_bytes
from meshwright.simulate import Costs, SegmentCost


def one_stage_costs(plan: Plan, program: Program) -> Costs:
    """Costs for the simulator, with those of a smaller last micro-batch where there is one."""
    pieces, ways, gradients = stage_pieces(plan, program, 0), chosen_ways(plan, program), gradients_of(plan, program)
    rows = [
        _cost(plan, index, piece, way, size)
        for index, (piece, way, size) in enumerate(zip(pieces, ways, gradients, strict=True))
    ]
    if plan.world_size == 1:
        rows[0] = replace(rows[0], static_bytes=rows[0].static_bytes + common_bytes(plan, program))
    found = Costs(rows, overlap=True, ranks=[plan.world_size])
    smaller = plan.remainder
    if smaller is None:
        return found
    fewer = stage_pieces(smaller, program, 0)
    less = [_smaller(row, piece, own) for row, piece, own in zip(rows, pieces, fewer, strict=True)]
    return replace(found, last=Costs(less, overlap=True))


def is_traced(plan: Plan) -> bool:
    """Whether seconds are those of traced pairs."""
    return plan.compile or plan.world_size == 1


def _cost(plan: Plan, index: int, piece: Piece, chosen: Chosen, gradients: int) -> SegmentCost:
    way, micro = chosen.way, plan.microbatches
    piece = piece.traced(way) if is_traced(plan) else piece
    point = piece.point
    found = _timed(plan, piece.with_hosted(SegmentCost.of(point)), chosen)
    waits = micro == 1 or point.reduce_per_microbatch_s > 0  # else gradients are summed among the static bytes
    more_s = _more_gathers_s(plan, index, piece)
    return replace(
        found,
        gather_params_s=found.gather_params_s + more_s,
        link_s=piece.link_s,
        overlappable_s=found.overlappable_s + more_s if found.overlappable_s else 0.0,
        resident_bytes=way.resident_bytes,
        forward_transient_bytes=way.forward_transient_bytes + piece.gathered,
        backward_transient_bytes=way.backward_transient_bytes + piece.gathered,
        gradient_bytes=gradients,
        added_bytes=way.added_bytes,
        pending_grad_bytes=point.pending_grad_bytes if waits else 0,
        grad_buckets=1 if way.chunks > 1 or plan.compile else point.grad_buckets,
    )


def _timed(plan: Plan, found: SegmentCost, chosen: Chosen) -> SegmentCost:
    """The point with recomputation, unless its seconds include that, and with the memory bandwidth of host copies."""
    way, recompute_s, slower, call_s = chosen.way, 0.0 if is_traced(plan) else chosen.recompute_s, 0.0, 0.0
    more_host_s = found.forward_host_s * (recompute_s / found.forward_s if found.forward_s else 0.0)
    copies = copies_of(plan.mesh.device) if way.offloaded_bytes else None
    found = replace(found, offloaded_bytes=way.offloaded_bytes)
    if copies is not None:
        slower, call_s = way.offloaded_bytes / copies.memory_rate, len(way.offload) * copies.call_s
        found = replace(found, away_s=way.offloaded_bytes / copies.rate)
    return replace(
        found,
        forward_s=found.forward_s + slower,
        backward_input_s=found.backward_input_s + recompute_s + slower,
        forward_host_s=found.forward_host_s + call_s,
        backward_host_s=found.backward_host_s + more_host_s + call_s,
    )


def _more_gathers_s(plan: Plan, index: int, piece: Piece) -> float:
    """Seconds of gathers that a nested order makes beyond those of one run of every segment."""
    if not plan.order or not piece.point.gather_per_use_s:
        return 0.0
    uses = chain_uses((index,), len(plan.segments), plan.microbatches, (index,) if piece.point.lookup else ())
    once_s = piece.point.gather_per_use_s / round(2 * plan.microbatches * uses)
    return once_s * gathers_of(plan.order, index, plan.microbatches) - piece.point.gather_per_use_s


def gradients_of(plan: Plan, program: Program) -> list[int]:
    """Bytes of parameter gradients that each segment's backward makes first."""
    found, known = [0] * len(program.segments), setting_of(plan)
    for parameter in program.parameters:
        last = program.uses_of(parameter.name)[-1]
        segment = program.segments[last]
        value = program.graphs[segment.graph].params[segment.params.index(parameter.name)]
        found[last] += gradient_bytes(value, plan.parameters[parameter.name], plan.mesh, known)
    return found


def static_bytes(plan: Plan, program: Program) -> tuple[int, list[int]]:
    """(bytes held throughout a step, gradient bytes that each segment's backward makes).

    With several micro-batches all gradients are held throughout.
    """
    held = sum(piece.point.static_bytes for piece in stage_pieces(plan, program, 0))
    held += common_bytes(plan, program) if plan.world_size == 1 else 0
    if plan.microbatches > 1:
        return held, [0] * len(program.segments)
    gradients = gradients_of(plan, program)
    return held - sum(gradients), gradients


def common_bytes(plan: Plan, program: Program) -> int:
    """Bytes of the batch, buffers, common values and unread parameters, which count on one device."""
    prologue = sharded_prologue(program, plan)
    values = prologue.values()
    found = program.unused_bytes + sum(type_bytes(buffer.type) for buffer in program.buffers)
    found += sum(type_bytes(values[name].type) for name in dict.fromkeys(prologue.outputs))
    for name, layout in plan.stages[0].inputs.items():
        entry = plan.inputs[name]
        found += local_bytes(entry.shape, ITEM_BYTES[entry.dtype], Layout.parse(layout), plan.mesh)
    return found


def _smaller(full: SegmentCost, piece: Piece, smaller: Piece) -> SegmentCost:
    """Costs in a smaller last micro-batch: all seconds shrink as those of the ops do."""
    each_s, less_s = (one.point.forward_s + one.point.backward_s for one in (piece, smaller))
    share = min(1.0, less_s / each_s) if each_s else 1.0
    return full.scaled(share)
