"""Which kernels an op asks for, forward and backward, and what they cost on a device.

An op's price has two sides that run at the same time: seconds of the device, and seconds that the host needs to ask
for the op (on a CPU there is only the first). Both are per rank, on local shapes; collectives are not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from meshwright.capture.program import Op
from meshwright.cost.op import attention, convolution, elementwise, products, rows
from meshwright.cost.op.case import Calls, Case, Seconds
from meshwright.cost.op.mixture import dispatch_host, dispatch_seconds, experts, measured_layer_s
from meshwright.profile.count import ATTENTIONS, CONVOLUTIONS, RING, VIEWS
from meshwright.profile.mixture import MIXTURES
from meshwright.profile.operands import packet
from meshwright.profile.saved import GROUPED_PRODUCTS


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
        key = attention.host_name(case)
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
    ((*ATTENTIONS, RING), Kernel(attention.attention, "attention")),
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
