"""Which kernels an op asks for, forward and backward, and what they cost on a device.

An op's price has two sides that run at the same time: seconds of the device, and seconds that the host needs to ask
for the op (on a CPU there is only the first). Both are per rank, on local shapes; collectives are not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

from meshwright.capture.program import Op, TensorType, Value
from meshwright.cost.op import convolution, elementwise, products, rows
from meshwright.cost.op.case import Calls, Case, Seconds, tensor
from meshwright.profile.attention import is_causal
from meshwright.profile.count import ATTENTIONS, CONVOLUTIONS, RING, VIEWS
from meshwright.profile.mixture import MIXTURES, grouped_flops, inner_ops, row_count
from meshwright.profile.operands import packet
from meshwright.profile.saved import GROUPED_PRODUCTS


def variant_of(case: Case) -> str:
    """Which of the kinds that calibration tells apart."""
    query, key = case.operands[:2]
    grouped = len(query.shape) > 2 and query.shape[-3] != key.shape[-3]
    masks = case.operands[3:]
    variant = "grouped" if grouped else "causal" if is_causal(case.op) else "plain"
    if masks or case.name == "causal_attention":
        variant = "bias" if any(mask.grad for mask in masks) else "mask"
        variant = "strided" if case.unfused else variant
    return variant


def host_name(case: Case) -> str:
    variant = variant_of(case)
    return "attention" if variant in ("plain", "causal") or case.name == RING else f"attention_{variant}"


def attention(case: Case) -> Seconds:
    query, key = case.operands[:2]
    variant = variant_of(case)
    heads, keys, width = prod(query.shape[:-2]), key.shape[-2], query.shape[-1]
    if case.name == RING:  # plain products, block by block
        variant, keys = "strided", keys * dict(case.op.kwargs)["size"]
    groups = max(1, heads // prod(key.shape[:-2]))
    sides = (
        case.on.attention_s(variant, side, case.dtype, case.itemsize, heads, query.shape[-2], keys, width, groups)
        for side in ("forward", "backward")
    )
    return next(sides), next(sides), 0.0


class Kernel(NamedTuple):
    """Device seconds of an op; under which name the host's are measured, where not by what kind of op it is."""

    seconds: Callable[[Case], Seconds]
    host: str = ""


def device_seconds(case: Case) -> Seconds:
    """Of the device: forward, and the gradients of inputs and of weights as if the results had gradients."""
    return KERNELS.get(case.name, OTHER).seconds(case)


def host_seconds(case: Case) -> Calls:
    """Of the host, as part of a segment pair: forward, and backward as if the results had gradients."""
    name = case.name
    if name in MIXTURES:
        return _calls([*(host_seconds(inner) for inner in experts(case)), *dispatch_host(case)])
    if name in GROUPED_PRODUCTS:
        return products.grouped_host(case)
    key = KERNELS.get(name, OTHER).host or ("view" if name in VIEWS else "binary" if case.grads > 1 else "multiply")
    if key == "added":
        key = "scaled" if len(case.operands) < 2 else "reduced" if elementwise.broadcasts(case) else "added"
    elif key == "linear":
        flat = len(case.operands[0].shape) < 3
        key = "linear_flat" if flat else "linear" if len(case.operands) > 2 else "linear_plain"
    elif key == "attention":
        key = host_name(case)
    elif key == "convolution":
        sides = convolution.host_names(case)
        more, less = ([case.on.host(one, case.dtype, pair=True) for one in side] for side in sides)
        return _difference(_calls(more), _calls([(0.0, 0.0), *less]))
    return case.on.host(key, case.dtype, pair=True)


def _mixture(case: Case) -> Seconds:
    """The experts' own ops, and what brings tokens to them and back."""
    columns = zip(*map(device_seconds, experts(case)), dispatch_seconds(case), strict=True)
    forward_s, inputs_s, weights_s = map(sum, columns)
    measured_s = measured_layer_s(case)
    ratio = measured_s / forward_s if measured_s else 1.0
    return ratio * forward_s, ratio * inputs_s, ratio * weights_s


def _difference(all_s: Calls, less_s: Calls) -> Calls:
    return max(0.0, all_s[0] - less_s[0]), max(0.0, all_s[1] - less_s[1])


def _calls(pairs: Iterable[Calls]) -> Calls:
    forward_s, backward_s = zip(*pairs, strict=True)
    return sum(forward_s), sum(backward_s)


def _all(kinds: Iterable[str], dims: Iterable[int] = (1, 2, 3)) -> tuple[str, ...]:
    return tuple(f"{kind}_pool{n}d" for kind in kinds for n in dims)


_GROUPS: tuple[tuple[Iterable[str], Kernel], ...] = (
    (VIEWS, Kernel(elementwise.view)),
    (("transpose", "permute", "t", "numpy_T", "unsqueeze", "squeeze"), Kernel(elementwise.view, "transpose")),
    (("chunk", "split", "split_with_sizes", "unbind"), Kernel(elementwise.split, "chunk")),
    (("slice", "select", "narrow"), Kernel(elementwise.slice_, "slice")),
    (("expand", "expand_as", "broadcast_to"), Kernel(elementwise.expand, "expand")),
    (
        ("gelu", "tanh", "erf", "softplus", "mish", "log_sigmoid"),
        Kernel(elementwise.activation("gelu"), "gelu"),
    ),
    (
        ("silu", "sigmoid", "elu", "hardswish", "selu", "celu"),
        Kernel(elementwise.activation("silu"), "silu"),
    ),
    (
        ("relu", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "square", "sin", "cos", "clamp", "reciprocal"),
        Kernel(elementwise.activation("relu"), "relu"),
    ),
    (("leaky_relu", "relu6", "hardtanh", "pow"), Kernel(elementwise.activation("relu"), "relu")),
    (
        ("arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "empty", "empty_like", "eye"),
        Kernel(elementwise.filled, "fill"),
    ),
    (("add", "sub", "rsub"), Kernel(elementwise.added, "added")),
    (("masked_fill",), Kernel(elementwise.masked)),
    (("to", "type_as", "_to_copy"), Kernel(elementwise.cast, "cast")),
    (("contiguous", "clone"), Kernel(elementwise.copied, "cast")),
    (("repeat", "repeat_interleave", "roll", "flip"), Kernel(elementwise.copied)),
    (("cat", "stack"), Kernel(elementwise.cat, "cat")),
    (("sum",), Kernel(rows.reduction, "column_sum")),
    (("mean",), Kernel(rows.reduction, "mean")),
    (("amax", "amin", "logsumexp", "linalg_vector_norm", "var", "std"), Kernel(rows.reduction)),
    (("embedding", "vocab_embedding"), Kernel(rows.embedding, "embedding")),
    (("index", "index_select", "gather"), Kernel(rows.gather, "gather")),
    (
        ("cross_entropy_loss", "cross_entropy", "vocab_cross_entropy"),
        Kernel(rows.rows("cross_entropy", rows.classes), "cross_entropy"),
    ),
    (("softmax", "log_softmax", "shared_softmax"), Kernel(rows.rows("softmax", rows.one_dim), "softmax")),
    (("layer_norm", "shared_layer_norm"), Kernel(rows.rows("layer_norm", rows.last_dims), "layer_norm")),
    (("rms_norm", "shared_rms_norm"), Kernel(rows.rows("rms_norm", rows.last_dims), "rms_norm")),
    (("batch_norm", "instance_norm"), Kernel(rows.rows("batch_norm", rows.channels), "batch_norm")),
    (("group_norm",), Kernel(rows.rows("group_norm", rows.groups), "group_norm")),
    (("sort", "argsort"), Kernel(rows.main("sort"), "sort")),
    (("topk",), Kernel(rows.main("topk"), "topk")),
    (("mse_loss", "l1_loss", "mean_loss"), Kernel(rows.main("squared_error"), "squared_error")),
    (("smooth_l1_loss",), Kernel(rows.main("squared_error"))),
    (_all(["max"]), Kernel(rows.pool("max_pool"), "max_pool")),
    (_all(["avg"]), Kernel(rows.pool("avg_pool"), "avg_pool")),
    (("pad", "constant_pad_nd"), Kernel(rows.main("pad"), "pad")),
    (("dropout",), Kernel(rows.dropout, "dropout")),
    (("linear",), Kernel(products.linear, "linear")),
    (("mm", "mv", "dot", "addmm"), Kernel(products.matmul, "matmul")),
    (("bmm", "matmul", "baddbmm"), Kernel(products.matmul, "bmm")),
    (("einsum",), Kernel(products.einsum, "bmm")),
    (GROUPED_PRODUCTS, Kernel(products.grouped, "grouped_mm")),
    (MIXTURES, Kernel(_mixture)),
    ((*ATTENTIONS, RING), Kernel(attention, "attention")),
    (CONVOLUTIONS, Kernel(convolution.convolution, "convolution")),
)
KERNELS: dict[str, Kernel] = {name: kernel for names, kernel in _GROUPS for name in names}
"""By an op's name; a later group has the last word."""

OTHER = Kernel(elementwise.elementwise)
"""An op that the table does not name is priced by its bytes."""


def name_of(op: Op) -> str:
    return packet(op.target)


def literals(op: Op) -> Any:
    """The arguments that change what an op costs besides its shapes; the rest need not tell ops apart."""
    name = packet(op.target)
    return (op.args[1:], op.kwargs) if name in _BY_LITERALS else None


_BY_LITERALS = frozenset(
    {
        *(*ATTENTIONS, RING, *MIXTURES, *_all(["max", "avg"])),
        *("dropout", "sum", "mean", "softmax", "log_softmax", "group_norm", "layer_norm", "rms_norm"),
    }
)


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
