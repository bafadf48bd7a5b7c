"""A mixture of experts: the experts' own ops, and what brings tokens to them and back."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from meshwright.capture.program import TensorType, Value
from meshwright.cost.op.case import Calls, Case, Seconds, tensor
from meshwright.profile.mixture import grouped_flops, inner_ops, row_count
from meshwright.profile.operands import packet


def experts(case: Case) -> Iterator[Case]:
    """The ops inside."""
    values = [
        Value(name, TensorType(local.shape, local.dtype), local.grad)
        for name, local in zip(case.op.operands(), case.operands, strict=True)
    ]
    for inner in inner_ops(case.op, values):
        operands, results = (
            tuple(tensor(value.type.sizes, value.type.dtype, value.grad) for value in side)
            for side in (inner.operands, inner.op.results)
        )
        yield Case(inner.op, packet(inner.op.target), operands, results, case.on)


def measured_layer_s(case: Case) -> float | None:
    """Forward of the whole layer, where such layers were measured on the device but not meshwright's own."""
    if case.on.has_own_tables:
        return None
    values = [
        Value(name, TensorType(local.shape, local.dtype), local.grad)
        for name, local in zip(case.op.operands(), case.operands, strict=True)
    ]
    rows, flops = row_count(case.op, values), sum(grouped_flops(case.op, values).values())
    (tokens, hidden), topk = case.operands[0].shape[-2:], case.operands[1].shape[-1]
    ranks = dict(case.op.kwargs)["size"] if case.op.target.endswith(":local_mix") else 1
    ffn = max(1, round(flops / max(1, 6 * rows * hidden)))
    return case.on.mixture_s(case.dtype, tokens, hidden, ffn, topk, case.operands[3].shape[0], ranks)


def dispatch_seconds(case: Case) -> Seconds:
    """Two sorts, two gathers, weights, a sum: measured together, or added up."""
    picks = prod(case.operands[1].shape)
    rows = tensor((picks, *case.operands[0].shape[1:]), case.dtype, True)
    if "dispatch.forward" in case.on.tables.kernels:
        return case.kernel("dispatch.forward", rows.bytes), case.kernel("dispatch.backward", rows.bytes), 0.0
    forward_s = 2 * case.on.kernel_s("sort.forward", "int64", 8 * picks)
    forward_s += 2 * case.kernel("gather.forward", 2 * rows.bytes) + case.kernel("broadcast.forward", 2 * rows.bytes)
    backward_s = 2 * case.kernel("gather.backward", 2 * rows.bytes)
    backward_s += 2 * case.kernel("broadcast.backward", 3 * rows.bytes)
    width, tokens = rows.shape[-1], prod(case.results[0].shape)
    backward_s += case.on.rows_s("mean", "forward", case.dtype, case.itemsize, picks, width)
    each = max(1, picks * width // tokens)
    forward_s += case.on.rows_s("column_sum", "forward", case.dtype, case.itemsize, tokens, each)
    return forward_s, backward_s, 0.0


def dispatch_host(case: Case) -> list[Calls]:
    """Ops that pairs have as many of."""
    counts = {"sort": 2, "gather": 3, "multiply": 2, "column_sum": 2, "fill": 3, "view": 6, "cast": 3}
    return [case.on.host(name, case.dtype, pair=True) for name, count in counts.items() for _ in range(count)]
