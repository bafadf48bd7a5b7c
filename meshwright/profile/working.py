"""What an op allocates besides what it returns and keeps: gradients of its operands, and room to work in.

The gradient of a view or of a sum is the gradient it was given, seen otherwise: nothing is allocated. Room to work
in is written down for the ops whose kernels need as much as an operand or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from meshwright.capture.program import Op, Value
from meshwright.profile.count import ATTENTIONS, CONVOLUTIONS
from meshwright.profile.operands import packet, type_bytes
from meshwright.profile.places import Places, returns_operand

_HANDED_ON = """
    view _unsafe_view reshape flatten unflatten transpose permute t numpy_T unsqueeze squeeze alias contiguous clone
    lift_fresh_copy movedim cat stack sum
"""
HANDED_ON = frozenset(_HANDED_ON.split())
"""Ops whose backward returns a view of the gradient it was given. A sum's is repeated without being written."""


MULTIPROCESSORS = 132
"""Of an H100 or H200."""
THREADS, RESIDENT_THREADS = 512, 2048
"""Of a block of torch's reductions; of a multiprocessor."""


def hands_on_gradient(op: Op, index: int, operands: Sequence[Value]) -> bool:
    """Whether the gradient of an operand is the result's own, seen otherwise."""
    name, result, operand = packet(op.target), op.results[0].type, operands[index].type
    if name in HANDED_ON:
        return operand.dtype == result.dtype
    if name == "dropout":
        return returns_operand(op)
    plain = name == "add" or (name == "sub" and index == 0) or name in ("to", "type_as", "expand")
    return plain and operand == result


def forward_working_bytes(op: Op, operands: Sequence[Value], places: Places) -> int:
    """Scores of an attention that is not fused, before the softmax; what a convolution's kernel asks for."""
    name = packet(op.target)
    if name in ATTENTIONS and places.kernel(op, operands) == "math":
        return _scores_bytes(operands) * 4 // 3
    return _convolution(op, operands, places) if name in CONVOLUTIONS else 0


def backward_working_bytes(op: Op, operands: Sequence[Value], places: Places) -> int:
    rule = _BACKWARD.get(packet(op.target))
    return rule(op, operands, places) if rule else 0


def _cross_entropy(op: Op, operands: Sequence[Value], places: Places) -> int:
    """The gradient of the log-probabilities, before that of the logits."""
    return type_bytes(operands[0].type)


def _attention(op: Op, operands: Sequence[Value], places: Places) -> int:
    """Fused kernels sum the queries' gradient in single precision, grouped heads' apart, with a number per row."""
    query = operands[0].type
    rows = prod(query.sizes[:-1]) * 4
    if places.kernel(op, operands) == "math":
        return 3 * _scores_bytes(operands)
    if places.device == "cpu":
        return rows
    if places.kernel(op, operands) != "efficient":
        grouped = sum(type_bytes(query) for value in operands[1:3] if value.type.sizes[1] != query.sizes[1])
        return rows + prod(query.sizes) * 4 + grouped
    *lead, seq, width = query.sizes
    sums = prod(lead) * (-(-seq // 64) * 64) * (-(-width // 64) * 64) * 4
    biases = [_scores_count(operands) * query.itemsize for mask in operands[3:] if mask.grad]
    return rows + max(sums, sum(biases))


def _softmax(op: Op, operands: Sequence[Value], places: Places) -> int:
    """The gradient times the result, before its sum is taken off."""
    return type_bytes(op.results[0].type) if places.device == "cuda" else 0


def _convolution(op: Op, operands: Sequence[Value], places: Places) -> int:
    """On a GPU, copies in the order that the kernels want: channels last. 1x1 kernels take what there is."""
    if places.device == "cpu" or prod(operands[1].type.sizes[2:]) == 1:
        return 0
    return sum(type_bytes(value.type) for value in (*operands[:2], *op.results))


def _product(op: Op, operands: Sequence[Value], places: Places) -> int:
    """An operand that was repeated has its gradient written out before it is summed."""
    result = op.results[0].type
    repeated = [value for value in operands if value.grad and prod(value.type.sizes) < prod(result.sizes)]
    return type_bytes(result) * len(repeated) + max((_sum_bytes(op, v, places) for v in repeated), default=0)


def _linear(op: Op, operands: Sequence[Value], places: Places) -> int:
    """The sum of a bias's gradient over all rows."""
    return _sum_bytes(op, operands[2], places) if len(operands) > 2 and operands[2].grad else 0


def _added(op: Op, operands: Sequence[Value], places: Places) -> int:
    total = prod(op.results[0].type.sizes)
    return max((_sum_bytes(op, v, places) for v in operands if v.grad and prod(v.type.sizes) < total), default=0)


def _sum_bytes(op: Op, value: Value, places: Places) -> int:
    """On a GPU, of the sum of a gradient over the leading dims."""
    columns = prod(value.type.sizes)
    rows = prod(op.results[0].type.sizes) // max(columns, 1)
    return column_sum_bytes(rows, columns) if places.device == "cuda" else 0


def column_sum_bytes(rows: int, columns: int, multiprocessors: int = MULTIPROCESSORS) -> int:
    """What blocks of threads write down of their shares of a sum over rows, as torch's reduction divides its work: up
    to four columns a thread, warps side by side, and rows among as many blocks as the device runs at once."""
    per_thread = next(n for n in (4, 2, 1) if columns % n == 0)
    threads = THREADS // per_thread
    wide, high = (min(threads, _power_of_two(size)) for size in (columns // per_thread, rows))
    width = min(wide, 32)
    height = min(high, threads // width)
    width = min(wide, threads // height)
    shared, groups = -(-rows // height), -(-columns // per_thread // width)
    at_once = multiprocessors * (RESIDENT_THREADS // (width * height))
    if shared < 256 or groups > at_once:
        return 0
    shares = max(min(-(-at_once // groups), -(-shared // 16)), -(-shared // 256))
    return 4 * columns * width * per_thread * shares if shares > 1 else 0


def _power_of_two(size: int) -> int:
    """The largest that is not above it."""
    return 1 << max(1, size).bit_length() - 1


def _scores_count(operands: Sequence[Value]) -> int:
    query, key = operands[0].type, operands[1].type
    return prod(query.sizes[:-1]) * key.sizes[-2]


def _scores_bytes(operands: Sequence[Value]) -> int:
    return _scores_count(operands) * max(4, operands[0].type.itemsize)


_BACKWARD: dict[str, Callable[[Op, Sequence[Value], Places], int]] = {
    "cross_entropy_loss": _cross_entropy,
    "scaled_dot_product_attention": _attention,
    "causal_attention": _attention,
    "mul": _product,
    "div": _product,
    "softmax": _softmax,
    "linear": _linear,
    "add": _added,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
}
