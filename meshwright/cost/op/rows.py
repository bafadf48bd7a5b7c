"""Kernels over rows, images and lookups."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from meshwright.capture.program import ITEM_BYTES
from meshwright.cluster.device_profile import LOOKED_UP, VOCABULARY
from meshwright.cost.op.case import Case, Seconds


def main(name: str) -> Callable[[Case], Seconds]:
    """Kernels whose work is the bytes of their main operand."""

    def seconds(case: Case) -> Seconds:
        main = case.operands[0]
        forward_s = case.on.kernel_s(f"{name}.forward", main.dtype, main.bytes)
        kernel = f"{name}.backward"
        backward_s = case.on.kernel_s(kernel, main.dtype, main.bytes) if kernel in case.on.tables.kernels else 0.0
        return forward_s, backward_s, 0.0

    return seconds


def rows(name: str, units_of: Callable[[Case], int]) -> Callable[[Case], Seconds]:
    """Kernels that work through rows side by side; `units_of`: how many there are."""

    def seconds(case: Case) -> Seconds:
        main = case.operands[0]
        units = max(1, units_of(case))
        width = max(1, prod(main.shape) // units)
        itemsize = ITEM_BYTES[main.dtype]
        sides = (case.on.rows_s(name, side, main.dtype, itemsize, units, width) for side in ("forward", "backward"))
        return next(sides), next(sides), 0.0

    return seconds


def last_dims(case: Case) -> int:
    """Rows of a norm over the dims of its weight, or over the last one."""
    main = case.operands[0].shape
    normed = len(case.op.args[1]) if len(case.op.args) > 1 and isinstance(case.op.args[1], tuple) else 1
    return prod(main[: len(main) - normed])


def one_dim(case: Case) -> int:
    main = case.operands[0].shape
    dim = case.op.argument(1, "dim", -1)
    return prod(main) // max(1, main[dim]) if isinstance(dim, int) and main else 1


def classes(case: Case) -> int:
    logits = case.operands[0].shape
    return prod(logits) // max(1, logits[1] if len(logits) > 1 else logits[0])


def groups(case: Case) -> int:
    return case.operands[0].shape[0] * int(case.op.argument(1, "num_groups", 1))


def channels(case: Case) -> int:
    return case.operands[0].shape[1]


def reduction(case: Case) -> Seconds:
    """Of the last dims rows are summed, of others columns. A mean's gradient is written out, a sum's is repeated."""
    main, result = case.operands[0], case.results[0]
    units = max(1, prod(result.shape))
    width = max(1, prod(main.shape) // units)
    dims = case.op.argument(1, "dim", ())
    dims = (dims,) if isinstance(dims, int) else dims if isinstance(dims, tuple) else ()
    last = not dims or any(dim in (-1, len(main.shape) - 1) for dim in dims)
    itemsize = ITEM_BYTES[main.dtype]
    kernel = "mean" if last else "column_sum"
    forward_s = case.on.rows_s(kernel, "forward", main.dtype, itemsize, units, width)
    if case.name == "sum":
        return forward_s, 0.0, 0.0
    return forward_s, case.on.rows_s("mean", "backward", main.dtype, itemsize, units, width), 0.0


def dropout(case: Case) -> Seconds:
    idle = not case.op.argument(2, "train", True) or case.op.argument(1, "p", 0.5) == 0
    return (0.0, 0.0, 0.0) if idle else main("dropout")(case)


def embedding(case: Case) -> Seconds:
    """The gradient of the whole weight is filled with zeros first: more of it than was measured with. Then what takes
    time is how many rows there are, not how long they are."""
    result, weight = case.results[0], case.operands[0]
    more = weight.bytes - VOCABULARY * weight.bytes // max(1, weight.shape[0])
    looked_up = prod(result.shape[:-1]) * LOOKED_UP * case.itemsize
    backward_s = case.kernel("embedding.backward", looked_up) + case.kernel("fill.forward", more)
    return case.kernel("embedding.forward", result.bytes), 0.0, backward_s


def gather(case: Case) -> Seconds:
    work = 2 * case.results[0].bytes
    return case.kernel("gather.forward", work), case.kernel("gather.backward", work), 0.0


def pool(name: str) -> Callable[[Case], Seconds]:
    """Forward by the windows looked at, backward by the pixels handed a gradient."""

    def seconds(case: Case) -> Seconds:
        window = case.op.argument(1, "kernel_size", (3, 3))
        share = (prod(window if isinstance(window, tuple) else (window, window)) / 9) ** 0.5
        forward_s = case.kernel(f"{name}.forward", case.results[0].bytes * share)
        return forward_s, case.kernel(f"{name}.backward", case.operands[0].bytes * share), 0.0

    return seconds
