"""Products of matrices."""

from __future__ import annotations

from math import prod

from meshwright.cost.op.case import Calls, Case, Seconds

GROUPS = (4, 16)
"""Of how many the host's cost was measured."""


def linear(case: Case) -> Seconds:
    x, weight = case.operands[:2]
    n, k = weight.shape if len(weight.shape) == 2 else (1, weight.shape[0])
    m = prod(x.shape[:-1])
    on, dtype, itemsize = case.on, case.dtype, case.itemsize
    forward_s = on.matmul_s("bias" if len(case.operands) > 2 else "nt", dtype, itemsize, m, n, k)
    inputs_s = on.matmul_s("nn", dtype, itemsize, m, k, n) if x.grad else 0.0
    weights_s = on.matmul_s("tn", dtype, itemsize, n, k, m) if weight.grad else 0.0
    if len(case.operands) > 2 and case.operands[2].grad:
        weights_s += on.rows_s("column_sum", "forward", dtype, itemsize, n, m)
    return forward_s, inputs_s, weights_s


def matmul(case: Case) -> Seconds:
    """[..., m, k] by [..., k, n]; leading dims of both are a batch, those of the first alone are rows."""
    first = 1 if case.name in ("addmm", "baddbmm") else 0
    a, b = case.operands[first : first + 2]
    k = a.shape[-1]
    n = b.shape[-1] if len(b.shape) > 1 else 1
    batch = prod(b.shape[:-2])
    m = max(1, prod(case.results[0].shape) // max(1, n * batch))
    on, dtype, itemsize = case.on, case.dtype, case.itemsize
    forward_s = on.matmul_s("nn", dtype, itemsize, m, n, k, batch)
    first_s = on.matmul_s("nt", dtype, itemsize, m, k, n, batch) if a.grad else 0.0
    second_s = on.matmul_s("tn", dtype, itemsize, k, n, m, batch) if b.grad else 0.0
    is_weight = len(b.shape) < 3 and len(case.results[0].shape) > len(b.shape)
    return (forward_s, first_s, second_s) if is_weight else (forward_s, first_s + second_s, 0.0)


def grouped(case: Case) -> Seconds:
    """Rows [r, k], each by the matrix [k, n] of its group; where no kernel serves all groups, one after the other."""
    rows, weights = case.operands[:2]
    (r, k), n = rows.shape, weights.shape[2]
    on, dtype, itemsize = case.on, case.dtype, case.itemsize
    forward, inputs, weight, count = *on.grouped(dtype, r), 1
    if one_by_one(case):
        forward = inputs = weight = count = weights.shape[0]
        r = max(1, r // count)
    forward_s = forward * on.matmul_s("nt", dtype, itemsize, r, n, k)
    inputs_s = inputs * on.matmul_s("nn", dtype, itemsize, r, k, n) if rows.grad else 0.0
    weights_s = weight * on.matmul_s("tn", dtype, itemsize, k, n, r) if weights.grad else 0.0
    return forward_s, inputs_s, weights_s


def one_by_one(case: Case) -> bool:
    """Whether each group is a product of its own, and the host has to read from the device where they end."""
    return case.on.tables.kind == "cuda" and case.dtype != "bfloat16"


def grouped_host(case: Case) -> Calls:
    """Of the host: where no kernel serves all groups it asks for each, so more groups take longer."""
    (few, few_s), (many, many_s) = ((n, case.on.host(f"grouped_mm_{n}", case.dtype, pair=True)) for n in GROUPS)
    more = max(0.0, (case.operands[1].shape[0] - few) / (many - few))
    forward_s, backward_s = (a + more * max(0.0, b - a) for a, b in zip(few_s, many_s, strict=True))
    return forward_s, backward_s


def einsum(case: Case) -> Seconds:
    """As one product of its factors' sizes: a batch of what both have is not told apart."""
    a, b = case.operands[:2] if len(case.operands) > 1 else (case.operands[0], case.operands[0])
    whole = prod(case.results[0].shape)
    k = max(1, round((prod(a.shape) * prod(b.shape) / max(1, whole)) ** 0.5))
    m = max(1, prod(a.shape) // k)
    n = max(1, whole // m)
    forward_s = case.on.matmul_s("nn", case.dtype, case.itemsize, m, n, k)
    return forward_s, forward_s * case.grads, 0.0
