"""What an op allocates besides what it returns and keeps: gradients of its operands, and room to work in.

The gradient of a view or of a sum is the gradient it was given, seen otherwise: nothing is allocated. Room to work
in is written down for the ops whose kernels need as much as an operand or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from meshwright.capture.program import Op, Value
from meshwright.profile.attention import cuda_kernel, runs_fused
from meshwright.profile.operands import packet, type_bytes
from meshwright.profile.places import returns_operand
from meshwright.profile.saved import DeviceKind

_HANDED_ON = """
    view _unsafe_view reshape flatten unflatten transpose permute t numpy_T unsqueeze squeeze alias contiguous clone
    lift_fresh_copy movedim cat stack sum
"""
HANDED_ON = frozenset(_HANDED_ON.split())
"""Ops whose backward returns a view of the gradient it was given. A sum's is repeated without being written."""


def hands_on_gradient(op: Op, index: int, operands: Sequence[Value]) -> bool:
    """Whether the gradient of an operand is the result's own, seen otherwise."""
    name, result, operand = packet(op.target), op.results[0].type, operands[index].type
    if name in HANDED_ON:
        return operand.dtype == result.dtype
    if name == "dropout":
        return returns_operand(op)
    plain = name == "add" or (name == "sub" and index == 0) or name in ("to", "type_as", "expand")
    return plain and operand == result


def forward_working_bytes(op: Op, operands: Sequence[Value], device: DeviceKind) -> int:
    """Scores of an attention that is not fused, before and after the softmax and the mask."""
    if "attention" in packet(op.target) and not runs_fused(op, operands, device):
        return 2 * _scores_bytes(operands)
    return 0


def backward_working_bytes(op: Op, operands: Sequence[Value], device: DeviceKind) -> int:
    rule = _BACKWARD.get(packet(op.target))
    return rule(op, operands, device) if rule else 0


def _cross_entropy(op: Op, operands: Sequence[Value], device: DeviceKind) -> int:
    """The gradient of the log-probabilities, before that of the logits."""
    return type_bytes(operands[0].type)


def _attention(op: Op, operands: Sequence[Value], device: DeviceKind) -> int:
    """Flash sums the queries' gradient in single precision, and grouped heads' apart; all keep one number per row."""
    query = operands[0].type
    rows = prod(query.sizes[:-1]) * 4
    if not runs_fused(op, operands, device):
        return 2 * _scores_bytes(operands)
    if device == "cpu" or cuda_kernel(op, operands) == "efficient":
        return rows
    grouped = sum(type_bytes(query) for value in operands[1:3] if value.type.sizes[1] != query.sizes[1])
    return rows + prod(query.sizes) * 4 + grouped


def _product(op: Op, operands: Sequence[Value], device: DeviceKind) -> int:
    """An operand that was repeated has its gradient written out before it is summed."""
    result = op.results[0].type
    repeated = [value for value in operands if value.grad and prod(value.type.sizes) < prod(result.sizes)]
    return type_bytes(result) * len(repeated)


def _scores_bytes(operands: Sequence[Value]) -> int:
    query, key = operands[0].type, operands[1].type
    return prod(query.sizes[:-1]) * key.sizes[-2] * max(4, query.itemsize)


_BACKWARD: dict[str, Callable[[Op, Sequence[Value], DeviceKind], int]] = {
    "cross_entropy_loss": _cross_entropy,
    "scaled_dot_product_attention": _attention,
    "causal_attention": _attention,
    "mul": _product,
    "div": _product,
}
