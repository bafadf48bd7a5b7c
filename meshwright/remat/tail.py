"""The fused tail: the last segment run chunk by chunk, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.capture.program import Program, SegmentGraph, Value
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.errors import PlanError
from meshwright.generate.chunk import check_chunkable
from meshwright.generate.program import sharded_segment
from meshwright.plan import Plan
from meshwright.profile.operands import type_bytes
from meshwright.remat.curve import RematPoint, fastest_way
from meshwright.remat.traced import Tracer

MOST_CHUNKS = 64
WIDE = 4
"""Bytes per number in which narrower gradients are summed."""


def tail_options(
    program: Program, plan: Plan, whole: SegmentGraph, costs: NodeCosts, traced: Tracer
) -> list[RematPoint]:
    """One way for each number of chunks that divides the batch; none where the tail cannot be chunked."""
    batch, last = plan.microbatch, len(program.segments) - 1
    found = []
    for chunks in range(2, min(batch, MOST_CHUNKS) + 1):
        if batch % chunks:
            continue
        try:
            check_chunkable(program, chunks, batch)
            part = sharded_segment(program, plan, last, batch // chunks)
            found.append(tail_way(whole, part, chunks, costs, traced))
        except PlanError:
            return found
    return found


def tail_way(whole: SegmentGraph, part: SegmentGraph, chunks: int, costs: NodeCosts, traced: Tracer) -> RematPoint:
    """The last segment in so many chunks."""
    joint = traced(part)
    inner = fastest_way(joint, costs)
    inputs, slices = _bytes(whole.inputs), _bytes(part.inputs)
    gradients = _bytes([value for value in whole.params if value.grad])
    sums = _bytes([value for value in whole.params if value.grad], WIDE)
    resident = _bytes([value for value in whole.inputs if value.grad]) + gradients
    running = max(inner.forward_transient_bytes, inner.backward_transient_bytes) + inner.resident_bytes - slices
    peak = inputs + resident - gradients + sums + max(running, gradients)
    rate = costs.device.memory_bandwidth * costs.device.achievable_fraction("memory")
    return RematPoint(
        saved=tuple(f"gradient of {name}" for name in (*joint.grad_inputs, *joint.grad_params)),
        recompute=inner.recompute,
        keep=inner.keep,
        resident_bytes=resident,
        recompute_s=chunks * inner.recompute_s,
        forward_transient_bytes=max(0, peak - resident),
        backward_transient_bytes=0,
        gradient_bytes=gradients,
        forward_s=chunks * (inner.seconds + (2 * sums + gradients) / rate),
        backward_s=2 * resident / rate,
        forced=inner.forced,
        chunks=chunks,
        forward_host_s=chunks * (inner.forward_host_s + inner.backward_host_s),
    )


def _bytes(values: Sequence[Value], at_least: int = 0) -> int:
    found = 0
    for value in values:
        found += type_bytes(value.type) * max(1, at_least // value.type.itemsize)
    return found
