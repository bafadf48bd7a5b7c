"""FLOPs and bytes of one op, from its types alone; a strategy's lowering with local types works the same.

Model FLOPs, as for MFU: two per multiply-add of a matrix product, attention or convolution, nothing for the rest,
and nothing for what a kernel recomputes. Equal to torch.utils.flop_counter under the MATH attention kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Literal

from meshwright.capture.program import Op, Value
from meshwright.profile.mixture import MIXTURES, grouped_flops
from meshwright.profile.operands import Values, distinct_bytes, full_name, has_gradient, operands_of, packet, type_bytes
from meshwright.profile.saved import GROUPED_PRODUCTS, saved
from meshwright.rules.rule import Call
from meshwright.rules.table.matmul import einsum

Kind = Literal["matmul", "attention", "convolution", "memory", "view"]

_VIEWS = """
    view _unsafe_view reshape flatten unflatten transpose permute t numpy_T unsqueeze squeeze expand slice select
    unbind chunk split split_with_sizes narrow alias detach view_as_real view_as_complex expand_as broadcast_to
    view_as reshape_as broadcast_tensors
"""
VIEWS = frozenset(_VIEWS.split())
ATTENTIONS = frozenset({"scaled_dot_product_attention", "causal_attention"})
RING = "ring_attention"
"""Attention over blocks that go round: products of its own, no kernel to choose."""
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
CONVOLUTIONS = frozenset(f"conv{turned}{n}d" for n in (1, 2, 3) for turned in ("", "_transpose"))
PASSES_GRADIENT = frozenset({"add"})
"""Ops whose operands take the result's gradient as it is, where nothing broadcasts."""


def op_kind(op: Op) -> Kind:
    """What bounds the op: a unit's arithmetic, or memory; views cost nothing."""
    name = packet(op.target)
    if name in VIEWS:
        return "view"
    if name in ATTENTIONS or name == RING:
        return "attention"
    if name in CONVOLUTIONS:
        return "convolution"
    return "matmul" if name in _PRODUCTS else "memory"


def is_view(op: Op) -> bool:
    """Whether the results share the first operand's storage. A reshape is taken to; some have to copy."""
    return packet(op.target) in VIEWS


def forward_flops(op: Op, values: Values, *, skip_masked: bool = False) -> int:
    """FLOPs of the forward; `skip_masked` halves causal attention, as kernels that skip masked blocks do."""
    flops = sum(_pair_flops(op, operands_of(op, values)))
    return flops // 2 if skip_masked and _is_causal(op) else flops


def backward_flops(op: Op, values: Values, *, skip_masked: bool = False) -> int:
    """FLOPs of the gradients of all operands that have one."""
    flops = sum(backward_flops_by_operand(op, values))
    return flops // 2 if skip_masked and _is_causal(op) else flops


def backward_flops_by_operand(op: Op, values: Values) -> tuple[int, ...]:
    """The same per operand, so that weight gradients can be told from input gradients."""
    operands = operands_of(op, values)
    costs = [0] * len(operands)
    if not has_gradient(op):
        return tuple(costs)
    if op_kind(op) == "attention":
        scores, mixed = _attention(op, operands)
        # The gradient of the scores leads to queries and keys alike; it is counted with the queries.
        costs[:3] = [scores + mixed, scores, mixed]
    elif packet(op.target) in MIXTURES:
        by_weight = grouped_flops(op, operands)
        costs = [by_weight.get(i, 0) for i in range(len(operands))]
        costs[0] = sum(by_weight.values())
    elif packet(op.target) in RECURRENT:
        costs = _recurrent_backward(op, operands)
    else:
        flops = sum(_pair_flops(op, operands))
        for index in _factors_of_product(op, operands):
            costs[index] = flops
    return tuple(cost if value.grad else 0 for cost, value in zip(costs, operands, strict=True))


def op_bytes(op: Op, values: Values) -> int:
    """Bytes read and written by the forward, what it keeps for backward included."""
    operands = operands_of(op, values)
    written = sum(type_bytes(value.type) for value in op.results)
    if is_view(op):
        return 0
    if packet(op.target) in ("embedding", "vocab_embedding"):
        return 2 * written + type_bytes(operands[1].type)
    return distinct_bytes(op, operands) + written + saved(op, operands).auxiliary_bytes


def backward_bytes(op: Op, values: Values) -> int:
    """Bytes read and written by the backward: gradients in, what was kept, gradients out."""
    operands = operands_of(op, values)
    if is_view(op) or not has_gradient(op):
        return 0
    result = op.results[0].type
    if packet(op.target) in PASSES_GRADIENT and all(value.type == result for value in operands if value.grad):
        return 0
    kept = saved(op, operands)
    read = sum(type_bytes(value.type) for value in op.results if value.grad) + kept.auxiliary_bytes
    read += sum(type_bytes(operands[i].type) for i in kept.operands)
    read += sum(type_bytes(op.results[i].type) for i in kept.results)
    return read + sum(type_bytes(value.type) for value in operands if value.grad)


def _pair_flops(op: Op, operands: Sequence[Value]) -> tuple[int, ...]:
    """FLOPs of each product inside the op."""
    name = packet(op.target)
    if name in ATTENTIONS or name == RING:
        return _attention(op, operands)
    if name in CONVOLUTIONS:
        output = operands[0] if "transpose" in name else op.results[0]
        return (2 * prod(output.type.sizes) * prod(operands[1].type.sizes[1:]),)
    if name in RECURRENT:
        return tuple(recurrent_flops(operands).values())
    return _PRODUCTS[name](op, operands) if name in _PRODUCTS else ()


def _recurrent_backward(op: Op, operands: Sequence[Value]) -> list[int]:
    """Every product has two gradients. That of a state or of a layer below is counted with the weight, and the first
    step's state has none."""
    by_weight = recurrent_flops(operands)
    steps = operands[0].type.sizes[1 if op.args[-1] else 0]
    costs = [by_weight.get(i, 0) for i in range(len(operands))]
    lowest = (0, 2) if op.args[-2] else (0,)  # the weights that meet the input, one per direction
    for place, (index, flops) in enumerate(by_weight.items()):
        costs[0 if place in lowest else index] += flops // steps * (steps - 1) if place % 2 else flops
    return costs


def recurrent_flops(operands: Sequence[Value]) -> dict[int, int]:
    """FLOPs of a recurrent op's products, by the operand that is their weight: each token meets each matrix once."""
    tokens = prod(operands[0].type.sizes[:-1])
    matrices = {i: value.type.sizes for i, value in enumerate(operands) if i and len(value.type.sizes) == 2}
    return {i: 2 * tokens * prod(sizes) for i, sizes in matrices.items()}


def _attention(op: Op, operands: Sequence[Value]) -> tuple[int, int]:
    """Queries by keys, and weights by values; grouped keys count once per query head."""
    query, key = operands[0].type.sizes, operands[1].type.sizes
    blocks = dict(op.kwargs)["size"] if packet(op.target) == RING else 1
    scores = 2 * prod(query[:-1]) * key[-2] * blocks
    return scores * query[-1], scores * operands[2].type.sizes[-1]


def _is_causal(op: Op) -> bool:
    """Whether a kernel is told of a causal mask; one given as a tensor it cannot skip."""
    return packet(op.target) == "scaled_dot_product_attention" and bool(op.argument(5, "is_causal", False))


def _contracted(operand: int, dim: int) -> Callable[[Op, Sequence[Value]], tuple[int, ...]]:
    """Every element of the result sums over one dim of one operand."""

    def flops(op: Op, operands: Sequence[Value]) -> tuple[int, ...]:
        return (2 * prod(op.results[0].type.sizes) * operands[operand].type.sizes[dim],)

    return flops


def _einsum(op: Op, operands: Sequence[Value]) -> tuple[int, ...]:
    """Pairs from left to right; factors that neither the result nor a later operand has are summed at once."""
    types = tuple(value.type for value in operands)
    signature = einsum(Call(op, types))
    sizes = signature.sizes(types, tuple(value.type for value in op.results))
    *terms, result = ({factor for dim in term.dims for factor in dim} for term in signature.terms())
    held, flops = terms[0], []
    for index, term in enumerate(terms[1:], start=1):
        joined = held | term
        flops.append(2 * prod(sizes[factor] for factor in joined))
        held = joined & result.union(*terms[index + 1 :])
    return tuple(flops)


_PRODUCTS: dict[str, Callable[[Op, Sequence[Value]], tuple[int, ...]]] = {
    "linear": _contracted(0, -1),
    "mm": _contracted(0, -1),
    "bmm": _contracted(0, -1),
    "mv": _contracted(0, -1),
    "dot": _contracted(0, -1),
    "matmul": _contracted(0, -1),
    **dict.fromkeys(GROUPED_PRODUCTS, _contracted(0, -1)),
    **dict.fromkeys(MIXTURES, lambda op, operands: tuple(grouped_flops(op, operands).values())),
    "addmm": _contracted(1, -1),
    "baddbmm": _contracted(1, -1),
    "einsum": _einsum,
}


def _factors_of_product(op: Op, operands: Sequence[Value]) -> range:
    """The operands that are multiplied; a bias is not."""
    name = full_name(op.target).partition(".")[0]
    if name in ("addmm", "baddbmm"):
        return range(1, 3)
    return range(len(operands)) if name == "einsum" else range(min(2, len(operands)))
