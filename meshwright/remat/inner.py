"""Chunked recomputation of inner segments: the same saved values, backward in chunks of the samples."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from torch import fx

from meshwright.caches import CACHES
from meshwright.capture.program import Program, SegmentGraph
from meshwright.cluster import Device, Mesh
from meshwright.cost.traced.host import graph_host_s
from meshwright.cost.traced.kernels import graph_seconds, loaded
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.peak import peak_bytes
from meshwright.cost.traced.storage import base, outputs_of, storage_bytes
from meshwright.errors import PlanError
from meshwright.generate.chunk_inner import check_inner_chunks, slices
from meshwright.generate.cut import Cut, cut_at
from meshwright.generate.joint import Joint
from meshwright.generate.program import sharded_segment
from meshwright.plan import Plan
from meshwright.remat.curve import RematPoint, in_memory_anyway
from meshwright.remat.tail import WIDE
from meshwright.remat.traced import Tracer

CHUNKS = (2, 4)


def inner_options(
    program: Program,
    plan: Plan,
    index: int,
    whole: SegmentGraph,
    ways: Collection[RematPoint],
    costs: NodeCosts,
    traced: Tracer,
    numbers: Collection[int] = CHUNKS,
) -> Iterator[RematPoint]:
    """Every way that recomputes, with its backward in chunks, where that is possible."""
    if any(op.target.startswith("meshwright.") for op in whole.ops):
        return  # collectives would run once per chunk
    for chunks in numbers:
        try:
            check_inner_chunks(program, index, chunks, plan.microbatch)
            part = traced(sharded_segment(program, plan, index, plan.microbatch // chunks))
            for kept in ways:
                if kept.recompute:
                    yield inner_way(traced(whole), part, kept, chunks, costs)
        except PlanError:
            return


def inner_way(whole: Joint, part: Joint, kept: RematPoint, chunks: int, costs: NodeCosts) -> RematPoint:
    """A way with its backward in so many chunks."""
    return _option(whole, part, kept, chunks, costs.device, costs.fused, costs.mesh)


@CACHES.memoized(maxsize=512)
def _option(
    whole: Joint, part: Joint, kept: RematPoint, chunks: int, device: Device, fused: bool, mesh: Mesh | None
) -> RematPoint:
    costs = loaded(whole.module, NodeCosts(device, fused, mesh))
    one, other = (cut_at(joint, kept.recompute, kept.keep, run=False) for joint in (whole, part))
    slices(one.halves, other.halves, len(whole.grad_inputs), chunks)
    second = other.halves.second
    held = in_memory_anyway(part) | set(other.halves.saved) | part.tangents
    running, _ = peak_bytes(second, held, (), costs)
    incoming = sum(storage_bytes(n) for n in one.halves.second.graph.nodes if n.name in whole.tangents)
    inputs, params = _result_bytes(one, len(whole.grad_inputs))
    numbers = sum(_numbers(one, len(whole.grad_inputs)))
    sums = max(params, WIDE * numbers)
    # Each chunk's gradients are read and added to what is there; at the end all is written as it is stored.
    moved = chunks * (params + 2 * sums) + sums + params + 2 * inputs
    return replace(
        kept,
        backward_s=chunks * graph_seconds(second, costs) + moved / costs.rate,
        weight_s=0.0,
        backward_host_s=chunks * graph_host_s(second, costs),
        backward_transient_bytes=running + incoming + inputs + sums,
        chunks=chunks,
    )


def _result_bytes(found: Cut, inputs: int) -> tuple[int, int]:
    """(bytes of the inputs' gradients, bytes of the parameters' gradients)."""
    results = outputs_of(found.halves.second)
    before, after = (
        sum(storage_bytes(node) for node in {base(node) for node in side if isinstance(node, fx.Node)})
        for side in (results[:inputs], results[inputs:])
    )
    return before, after


def _numbers(found: Cut, inputs: int) -> Iterator[int]:
    for node in outputs_of(found.halves.second)[inputs:]:
        if isinstance(node, fx.Node):
            yield node.meta["val"].numel()
