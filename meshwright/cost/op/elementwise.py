"""Kernels that go over every element once; and views, of which nothing is moved but a gradient."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from meshwright.cost.op.case import Case, Seconds, Tensor


def broadcasts(case: Case) -> bool:
    return any(operand.grad and operand.shape != case.results[0].shape for operand in case.operands)


def elementwise(case: Case) -> Seconds:
    """Backward: for each gradient what came back, what was kept, and what goes on."""
    result = case.results[0]
    name = "broadcast" if _repeats(case) else "multiply"
    moved = case.read + sum(one.bytes for one in case.results)
    inputs_s = weights_s = 0.0
    for operand in case.operands:
        if operand.grad:
            found = case.kernel(f"{name}.backward", 3 * result.bytes) + _reduced(case, operand)
            own = _is_weight(case, operand)
            inputs_s, weights_s = inputs_s + (0.0 if own else found), weights_s + (found if own else 0.0)
    return case.kernel(f"{name}.forward", moved), inputs_s, weights_s


def _is_weight(case: Case, operand: Tensor) -> bool:
    """A vector that is repeated over samples and places: a scale or a bias."""
    return len(operand.shape) < 2 and operand.shape != case.results[0].shape


def _repeats(case: Case) -> bool:
    """Whether an operand, more than a number, is repeated."""
    result = case.results[0].shape
    return any(len(operand.shape) > 1 and operand.shape != result for operand in case.operands)


def _reduced(case: Case, operand: Tensor) -> float:
    """The sum that a gradient takes where its operand was repeated."""
    result = case.results[0]
    columns = max(1, prod(operand.shape))
    rows = prod(result.shape) // columns
    return case.on.rows_s("column_sum", "forward", case.dtype, case.itemsize, columns, rows) if rows > 1 else 0.0


def added(case: Case) -> Seconds:
    """Gradients of a sum are what came back."""
    reduced = [(_reduced(case, operand), _is_weight(case, operand)) for operand in case.operands if operand.grad]
    inputs_s, weights_s = (sum(seconds for seconds, own in reduced if own == side) for side in (False, True))
    name = "broadcast" if _repeats(case) else "add"
    return case.kernel(f"{name}.forward", case.read + case.results[0].bytes), inputs_s, weights_s


def activation(name: str) -> Callable[[Case], Seconds]:
    def seconds(case: Case) -> Seconds:
        work = case.operands[0].bytes + case.results[0].bytes
        return case.kernel(f"{name}.forward", work), case.kernel(f"{name}.backward", work), 0.0

    return seconds


def masked(case: Case) -> Seconds:
    """A copy, and what is written into it; likewise of the gradient."""
    each_s = case.kernel("add.forward", 2 * case.results[0].bytes)
    return each_s + elementwise(case)[0], each_s + case.kernel("broadcast.forward", 2 * case.results[0].bytes), 0.0


def cast(case: Case) -> Seconds:
    operand, result = case.operands[0], case.results[0]
    if operand.dtype == result.dtype:
        return 0.0, 0.0, 0.0
    work = operand.bytes + result.bytes
    sides = (case.on.kernel_s(f"cast.{side}", operand.dtype, work) for side in ("forward", "backward"))
    return next(sides), next(sides), 0.0


def copied(case: Case) -> Seconds:
    return case.kernel("add.forward", 2 * case.results[0].bytes), 0.0, 0.0


def cat(case: Case) -> Seconds:
    return case.kernel("cat.forward", 2 * case.results[0].bytes), 0.0, 0.0


def filled(case: Case) -> Seconds:
    return case.kernel("fill.forward", sum(result.bytes for result in case.results)), 0.0, 0.0


def view(case: Case) -> Seconds:
    return 0.0, 0.0, 0.0


def split(case: Case) -> Seconds:
    return 0.0, case.kernel("cat.forward", 2 * case.operands[0].bytes), 0.0


def slice_(case: Case) -> Seconds:
    operand, result = case.operands[0], case.results[0]
    if operand.shape == result.shape:
        return 0.0, 0.0, 0.0
    copied = "add.forward" if operand.shape[1:] == result.shape[1:] else "broadcast.forward"
    return 0.0, case.kernel("fill.forward", operand.bytes) + case.kernel(copied, 2 * result.bytes), 0.0


def expand(case: Case) -> Seconds:
    return 0.0, _reduced(case, case.operands[0]), 0.0
