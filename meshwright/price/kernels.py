"""Which kernels an op asks for, forward and backward, and what they cost on a device.

An op's price has two sides that run at the same time: seconds of the device, and seconds that the host needs to ask
for the op (on a CPU there is only the first). Both are per rank, on local shapes; collectives are not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from meshwright.capture.program import ITEM_BYTES, Op, TensorType, Value
from meshwright.cluster.device_profile import VOCABULARY, DeviceProfile
from meshwright.profile.attention import is_causal
from meshwright.profile.count import ATTENTIONS, CONVOLUTIONS, RING, VIEWS
from meshwright.profile.kept import literal
from meshwright.profile.mixture import MIXTURES, inner_ops
from meshwright.profile.operands import packet
from meshwright.profile.saved import GROUPED_PRODUCTS

Shape = tuple[int, ...]
Seconds = tuple[float, float]


class Tensor(NamedTuple):
    """A local operand or result."""

    shape: Shape
    dtype: str
    grad: bool
    bytes: int


class Case(NamedTuple):
    """One op on local shapes."""

    op: Op
    name: str
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    on: DeviceProfile
    unfused: bool = False
    """Of an attention whose mask lies so that no fused kernel takes it."""

    @property
    def dtype(self) -> str:
        return self.results[0].dtype

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.results[0].dtype]

    @property
    def grads(self) -> int:
        return sum(operand.grad for operand in self.operands)

    @property
    def read(self) -> int:
        return sum(operand.bytes for operand in self.operands)

    def kernel(self, name: str, work: float) -> float:
        return self.on.kernel_s(name, self.dtype, work)


def tensor(shape: Shape, dtype: str, grad: bool) -> Tensor:
    return Tensor(shape, dtype, grad, prod(shape) * ITEM_BYTES[dtype])


def device_seconds(case: Case) -> Seconds:
    """Of the device: forward, and backward as if the results had gradients."""
    return _RULES.get(case.name, _elementwise)(case)


def host_seconds(case: Case) -> Seconds:
    """Of the host: forward, and backward as if the results had gradients."""
    name = case.name
    if name in MIXTURES:
        return _mixture_host(case)
    key = _HOST.get(name) or ("view" if name in VIEWS else "binary" if case.grads > 1 else "multiply")
    if key == "added":
        key = "scaled" if len(case.operands) < 2 else "reduced" if _broadcasts(case) else "added"
    elif key == "linear" and len(case.operands) < 3:
        key = "linear_plain"
    if key == "convolution" and prod(case.operands[1].shape[2:]) == 1:
        key = "convolution_1x1"
    return case.on.host(key, case.dtype)


def _broadcasts(case: Case) -> bool:
    return any(operand.grad and operand.shape != case.results[0].shape for operand in case.operands)


# Elementwise


def _elementwise(case: Case) -> Seconds:
    """Backward: for each gradient what came back, what was kept, and what goes on."""
    result = case.results[0]
    name = "broadcast" if _repeats(case) else "multiply"
    moved = case.read + sum(one.bytes for one in case.results)
    backward_s = 0.0
    for operand in case.operands:
        if operand.grad:
            backward_s += case.kernel(f"{name}.backward", 3 * result.bytes) + _reduced(case, operand)
    return case.kernel(f"{name}.forward", moved), backward_s


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


def _added(case: Case) -> Seconds:
    """Gradients of a sum are what came back."""
    backward_s = sum(_reduced(case, operand) for operand in case.operands if operand.grad)
    name = "broadcast" if _repeats(case) else "add"
    return case.kernel(f"{name}.forward", case.read + case.results[0].bytes), backward_s


def _activation(name: str) -> Callable[[Case], Seconds]:
    def seconds(case: Case) -> Seconds:
        work = case.operands[0].bytes + case.results[0].bytes
        return case.kernel(f"{name}.forward", work), case.kernel(f"{name}.backward", work)

    return seconds


def _cast(case: Case) -> Seconds:
    operand, result = case.operands[0], case.results[0]
    if operand.dtype == result.dtype:
        return 0.0, 0.0
    work = operand.bytes + result.bytes
    sides = (case.on.kernel_s(f"cast.{side}", operand.dtype, work) for side in ("forward", "backward"))
    return next(sides), next(sides)


def _copied(case: Case) -> Seconds:
    return case.kernel("add.forward", 2 * case.results[0].bytes), 0.0


# Rows, images and lookups


def _main(name: str) -> Callable[[Case], Seconds]:
    """Kernels whose work is the bytes of their main operand."""

    def seconds(case: Case) -> Seconds:
        main = case.operands[0]
        forward_s = case.on.kernel_s(f"{name}.forward", main.dtype, main.bytes)
        kernel = f"{name}.backward"
        return forward_s, case.on.kernel_s(kernel, main.dtype, main.bytes) if kernel in case.on.tables.kernels else 0.0

    return seconds


def _rows(name: str, units_of: Callable[[Case], int]) -> Callable[[Case], Seconds]:
    """Kernels that work through rows side by side; `units_of`: how many there are."""

    def seconds(case: Case) -> Seconds:
        main = case.operands[0]
        units = max(1, units_of(case))
        width = max(1, prod(main.shape) // units)
        itemsize = ITEM_BYTES[main.dtype]
        sides = (case.on.rows_s(name, side, main.dtype, itemsize, units, width) for side in ("forward", "backward"))
        return next(sides), next(sides)

    return seconds


def _last_dims(case: Case) -> int:
    """Rows of a norm over the dims of its weight, or over the last one."""
    main = case.operands[0].shape
    normed = len(case.op.args[1]) if len(case.op.args) > 1 and isinstance(case.op.args[1], tuple) else 1
    return prod(main[: len(main) - normed])


def _one_dim(case: Case) -> int:
    main = case.operands[0].shape
    dim = literal(case.op, 1, "dim", -1)
    return prod(main) // max(1, main[dim]) if isinstance(dim, int) and main else 1


def _classes(case: Case) -> int:
    logits = case.operands[0].shape
    return prod(logits) // max(1, logits[1] if len(logits) > 1 else logits[0])


def _groups(case: Case) -> int:
    return case.operands[0].shape[0] * int(literal(case.op, 1, "num_groups", 1))


def _channels(case: Case) -> int:
    return case.operands[0].shape[1]


def _reduction(case: Case) -> Seconds:
    """Of the last dims rows are summed, of others columns. A mean's gradient is written out, a sum's is repeated."""
    main, result = case.operands[0], case.results[0]
    units = max(1, prod(result.shape))
    width = max(1, prod(main.shape) // units)
    dims = literal(case.op, 1, "dim", ())
    dims = (dims,) if isinstance(dims, int) else dims if isinstance(dims, tuple) else ()
    last = not dims or any(dim in (-1, len(main.shape) - 1) for dim in dims)
    itemsize = ITEM_BYTES[main.dtype]
    kernel = "mean" if last else "column_sum"
    forward_s = case.on.rows_s(kernel, "forward", main.dtype, itemsize, units, width)
    if case.name == "sum":
        return forward_s, 0.0
    return forward_s, case.on.rows_s("mean", "backward", main.dtype, itemsize, units, width)


def _dropout(case: Case) -> Seconds:
    idle = not literal(case.op, 2, "train", True) or literal(case.op, 1, "p", 0.5) == 0
    return (0.0, 0.0) if idle else _main("dropout")(case)


def _embedding(case: Case) -> Seconds:
    """The gradient of the whole weight is filled with zeros first: more of it than was measured with."""
    result, weight = case.results[0], case.operands[0]
    more = weight.bytes - VOCABULARY * weight.bytes // max(1, weight.shape[0])
    backward_s = case.kernel("embedding.backward", result.bytes) + case.kernel("fill.forward", more)
    return case.kernel("embedding.forward", result.bytes), backward_s


def _gather(case: Case) -> Seconds:
    work = 2 * case.results[0].bytes
    return case.kernel("gather.forward", work), case.kernel("gather.backward", work)


def _pool(name: str) -> Callable[[Case], Seconds]:
    """Forward by the windows looked at, backward by the pixels handed a gradient."""

    def seconds(case: Case) -> Seconds:
        window = literal(case.op, 1, "kernel_size", (3, 3))
        share = (prod(window if isinstance(window, tuple) else (window, window)) / 9) ** 0.5
        forward_s = case.kernel(f"{name}.forward", case.results[0].bytes * share)
        return forward_s, case.kernel(f"{name}.backward", case.operands[0].bytes * share)

    return seconds


def _cat(case: Case) -> Seconds:
    return case.kernel("cat.forward", 2 * case.results[0].bytes), 0.0


def _filled(case: Case) -> Seconds:
    return case.kernel("fill.forward", sum(result.bytes for result in case.results)), 0.0


# Views: nothing is moved until a gradient has to be put where it belongs.


def _view(case: Case) -> Seconds:
    return 0.0, 0.0


def _split(case: Case) -> Seconds:
    return 0.0, case.kernel("cat.forward", 2 * case.operands[0].bytes)


def _slice(case: Case) -> Seconds:
    operand, result = case.operands[0], case.results[0]
    if operand.shape == result.shape:
        return 0.0, 0.0
    return 0.0, case.kernel("fill.forward", operand.bytes) + case.kernel("add.forward", 2 * result.bytes)


def _expand(case: Case) -> Seconds:
    return 0.0, _reduced(case, case.operands[0])


# Products


def _linear(case: Case) -> Seconds:
    x, weight = case.operands[:2]
    n, k = weight.shape if len(weight.shape) == 2 else (1, weight.shape[0])
    m = prod(x.shape[:-1])
    on, dtype, itemsize = case.on, case.dtype, case.itemsize
    forward_s = on.matmul_s("nt", dtype, itemsize, m, n, k)
    backward_s = on.matmul_s("nn", dtype, itemsize, m, k, n) if x.grad else 0.0
    backward_s += on.matmul_s("tn", dtype, itemsize, n, k, m) if weight.grad else 0.0
    if len(case.operands) > 2 and case.operands[2].grad:
        backward_s += on.rows_s("column_sum", "forward", dtype, itemsize, n, m)
    return forward_s, backward_s


def _matmul(case: Case) -> Seconds:
    """[..., m, k] by [..., k, n]; leading dims of both are a batch, those of the first alone are rows."""
    first = 1 if case.name in ("addmm", "baddbmm") else 0
    a, b = case.operands[first : first + 2]
    k = a.shape[-1]
    n = b.shape[-1] if len(b.shape) > 1 else 1
    batch = prod(b.shape[:-2])
    m = max(1, prod(case.results[0].shape) // max(1, n * batch))
    on, dtype, itemsize = case.on, case.dtype, case.itemsize
    forward_s = on.matmul_s("nn", dtype, itemsize, m, n, k, batch)
    backward_s = on.matmul_s("nt", dtype, itemsize, m, k, n, batch) if a.grad else 0.0
    backward_s += on.matmul_s("tn", dtype, itemsize, k, n, m, batch) if b.grad else 0.0
    return forward_s, backward_s


def _grouped(case: Case) -> Seconds:
    """Rows [r, k], each by the matrix [k, n] of its group."""
    rows, weights = case.operands[:2]
    (r, k), n = rows.shape, weights.shape[2]
    on, dtype, itemsize = case.on, case.dtype, case.itemsize
    forward, inputs, weight = on.grouped(dtype, r)
    forward_s = forward * on.matmul_s("nt", dtype, itemsize, r, n, k)
    backward_s = inputs * on.matmul_s("nn", dtype, itemsize, r, k, n) if rows.grad else 0.0
    backward_s += weight * on.matmul_s("tn", dtype, itemsize, k, n, r) if weights.grad else 0.0
    return forward_s, backward_s


def _mixture(case: Case) -> Seconds:
    """The experts' own ops, and what brings tokens to them and back: two sorts, two gathers, weights, a sum."""
    forward_s = backward_s = 0.0
    for inner in _inner(case):
        seconds = device_seconds(inner)
        forward_s += seconds[0]
        backward_s += seconds[1]
    picks = prod(case.operands[1].shape)
    rows = tensor((picks, *case.operands[0].shape[1:]), case.dtype, True)
    forward_s += 2 * case.on.kernel_s("sort.forward", "int64", 8 * picks)
    forward_s += 2 * case.kernel("gather.forward", 2 * rows.bytes) + case.kernel("broadcast.forward", 2 * rows.bytes)
    backward_s += 2 * case.kernel("gather.backward", 2 * rows.bytes) + 2 * case.kernel(
        "broadcast.backward", 3 * rows.bytes
    )
    width = rows.shape[-1]
    backward_s += case.on.rows_s("mean", "forward", case.dtype, case.itemsize, picks, width)
    tokens = prod(case.results[0].shape)
    forward_s += case.on.rows_s(
        "column_sum", "forward", case.dtype, case.itemsize, tokens, max(1, picks * width // tokens)
    )
    return forward_s, backward_s


def _mixture_host(case: Case) -> Seconds:
    found = [host_seconds(inner) for inner in _inner(case)]
    found += [case.on.host(name, case.dtype) for name in _DISPATCH]
    return sum(pair[0] for pair in found), sum(pair[1] for pair in found)


_DISPATCH = (
    "sort",
    "sort",
    "gather",
    "gather",
    "gather",
    "multiply",
    "column_sum",
    "fill",
    "fill",
    "fill",
    "view",
    "view",
)


def _inner(case: Case) -> Iterator[Case]:
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


def _einsum(case: Case) -> Seconds:
    """As one product of its factors' sizes: a batch of what both have is not told apart."""
    a, b = case.operands[:2] if len(case.operands) > 1 else (case.operands[0], case.operands[0])
    whole = prod(case.results[0].shape)
    k = max(1, round((prod(a.shape) * prod(b.shape) / max(1, whole)) ** 0.5))
    m = max(1, prod(a.shape) // k)
    n = max(1, whole // m)
    forward_s = case.on.matmul_s("nn", case.dtype, case.itemsize, m, n, k)
    return forward_s, forward_s * case.grads


def _attention(case: Case) -> Seconds:
    query, key = case.operands[:2]
    grouped = len(query.shape) > 2 and query.shape[-3] != key.shape[-3]
    masks = case.operands[3:]
    variant = "grouped" if grouped else "causal" if is_causal(case.op) else "plain"
    if masks or case.name == "causal_attention":
        variant = "bias" if any(mask.grad for mask in masks) else "mask"
        variant = "strided" if case.unfused else variant
    rows, seq, width = prod(query.shape[:-1]), key.shape[-2], query.shape[-1]
    if case.name == RING:  # plain products, block by block
        variant, seq = "strided", seq * dict(case.op.kwargs)["size"]
    sides = (
        case.on.attention_s(variant, side, case.dtype, case.itemsize, rows, seq, width)
        for side in ("forward", "backward")
    )
    return next(sides), next(sides)


def _convolution(case: Case) -> Seconds:
    """A turned one runs the gradient of the plain one forward, and the plain one backward."""
    x, weight = case.operands[:2]
    turned = "transpose" in case.name
    swept, wide = (x, case.results[0]) if turned else (case.results[0], x)
    groups = max(1, wide.shape[1] // weight.shape[1])
    out, channels, window = weight.shape[0] // groups, weight.shape[1], prod(weight.shape[2:])
    if window > 16:  # of windows this large, as of that many more channels
        channels, window = channels * window // 9, 9
    on, dtype, itemsize = case.on, case.dtype, case.itemsize
    image = prod(swept.shape[2:])
    reordered_s, odd = _reordered_s(case, wide, image, window, turned), image
    if reordered_s:
        odd = 0

    def side(name: str) -> float:
        pixels = prod(swept.shape) // swept.shape[1]
        return groups * on.convolution_s(name, dtype, itemsize, pixels, channels, out, window, odd) + reordered_s

    forward_s = side("input" if turned else "forward")
    backward_s = side("forward" if turned else "input") if x.grad else 0.0
    backward_s += side("weight") if weight.grad else 0.0
    if len(case.operands) > 2:
        bias_s = _convolution_bias(case)
        forward_s += bias_s[0]
        backward_s += bias_s[1]
    return forward_s, backward_s


def _reordered_s(case: Case, wide: Tensor, image: int, window: int, turned: bool) -> float:
    """Pixels beyond those swept (a stride skips them) are still brought into the order that kernels want, and back.

    In half precision a window of one takes the order there is, unless there is a stride: then all is reordered.
    """
    beyond = max(0, wide.bytes - wide.bytes // max(1, prod(wide.shape[2:])) * image)
    if not beyond:
        return 0.0
    half = case.itemsize == 2
    if half and window == 1 and not turned:
        return REORDERING["window of one"] * case.on.kernel_s("turned.forward", "float32", 2 * wide.bytes)
    kind = "turned, half" if turned and half else "turned" if turned else "strided"
    return REORDERING[kind] * case.on.kernel_s("turned.forward", "float32", 2 * beyond)


REORDERING = {"strided": 0.7, "window of one": 1.0, "turned": 1.2, "turned, half": 1.9}
"""Of the time that a plain copy into another order takes: what cuDNN's own copies did on an H200."""


def _convolution_bias(case: Case) -> Seconds:
    """Added to the result in place; its gradient is a sum over all pixels."""
    result, bias = case.results[0], case.operands[2]
    kernels = ("broadcast.forward", "add.forward")
    forward_s = sum(case.kernel(kernel, 2 * result.bytes) for kernel in kernels) / len(kernels)
    if not bias.grad:
        return forward_s, 0.0
    channels = result.shape[1]
    width = prod(result.shape) // channels
    return forward_s, case.on.rows_s("mean", "forward", case.dtype, case.itemsize, channels, width)


_SPLITS = ("chunk", "split", "split_with_sizes", "unbind")
_SLICES = ("slice", "select", "narrow")
_SMOOTH = ("gelu", "tanh", "erf", "softplus", "mish", "log_sigmoid")
_ACTIVATIONS = ("silu", "sigmoid", "elu", "hardswish", "selu", "celu")
_UNARY = (
    *("relu", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "square", "sin", "cos", "clamp", "reciprocal"),
    *("leaky_relu", "relu6", "hardtanh", "pow"),
)
_FACTORIES = ("arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "empty", "empty_like", "eye")

_RULES: dict[str, Callable[[Case], Seconds]] = {
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(_SPLITS, _split),
    **dict.fromkeys(_SLICES, _slice),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(_SMOOTH, _activation("gelu")),
    **dict.fromkeys(_ACTIVATIONS, _activation("silu")),
    **dict.fromkeys(_UNARY, _activation("relu")),
    **dict.fromkeys(_FACTORIES, _filled),
    **dict.fromkeys(("add", "sub", "rsub"), _added),
    **dict.fromkeys(("to", "type_as", "_to_copy"), _cast),
    **dict.fromkeys(("contiguous", "clone", "repeat", "repeat_interleave", "roll", "flip"), _copied),
    **dict.fromkeys(("cat", "stack"), _cat),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "logsumexp", "linalg_vector_norm", "var", "std"), _reduction),
    **dict.fromkeys(("embedding", "vocab_embedding"), _embedding),
    **dict.fromkeys(("index", "index_select", "gather"), _gather),
    **dict.fromkeys(("cross_entropy_loss", "cross_entropy", "vocab_cross_entropy"), _rows("cross_entropy", _classes)),
    **dict.fromkeys(("softmax", "log_softmax", "shared_softmax"), _rows("softmax", _one_dim)),
    **dict.fromkeys(("layer_norm", "shared_layer_norm"), _rows("layer_norm", _last_dims)),
    **dict.fromkeys(("rms_norm", "shared_rms_norm"), _rows("rms_norm", _last_dims)),
    **dict.fromkeys(("batch_norm", "instance_norm"), _rows("batch_norm", _channels)),
    "group_norm": _rows("group_norm", _groups),
    **dict.fromkeys(("sort", "argsort"), _main("sort")),
    "topk": _main("topk"),
    **dict.fromkeys(("mse_loss", "l1_loss", "mean_loss", "smooth_l1_loss"), _main("squared_error")),
    **{f"max_pool{n}d": _pool("max_pool") for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _pool("avg_pool") for n in (1, 2, 3)},
    **dict.fromkeys(("pad", "constant_pad_nd"), _main("pad")),
    "dropout": _dropout,
    "linear": _linear,
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", "addmm", "baddbmm"), _matmul),
    **dict.fromkeys(GROUPED_PRODUCTS, _grouped),
    **dict.fromkeys(MIXTURES, _mixture),
    "einsum": _einsum,
    **dict.fromkeys((*ATTENTIONS, RING), _attention),
    **dict.fromkeys(CONVOLUTIONS, _convolution),
}

_HOST: dict[str, str] = {
    **dict.fromkeys(("transpose", "permute", "t", "numpy_T", "unsqueeze", "squeeze"), "transpose"),
    **dict.fromkeys(_SPLITS, "chunk"),
    **dict.fromkeys(_SLICES, "slice"),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), "expand"),
    **dict.fromkeys(_SMOOTH, "gelu"),
    **dict.fromkeys(_ACTIVATIONS, "silu"),
    **dict.fromkeys(("pad", "constant_pad_nd"), "pad"),
    **dict.fromkeys(_UNARY, "relu"),
    **dict.fromkeys(_FACTORIES, "fill"),
    **dict.fromkeys(("add", "sub", "rsub"), "added"),
    **dict.fromkeys(("to", "type_as", "_to_copy"), "cast"),
    **dict.fromkeys(("contiguous", "clone"), "cast"),
    **dict.fromkeys(("cat", "stack"), "cat"),
    "sum": "column_sum",
    "mean": "mean",
    **dict.fromkeys(("embedding", "vocab_embedding"), "embedding"),
    **dict.fromkeys(("index", "index_select", "gather"), "gather"),
    **dict.fromkeys(("cross_entropy_loss", "cross_entropy", "vocab_cross_entropy"), "cross_entropy"),
    **dict.fromkeys(("softmax", "log_softmax", "shared_softmax"), "softmax"),
    **dict.fromkeys(("layer_norm", "shared_layer_norm"), "layer_norm"),
    **dict.fromkeys(("rms_norm", "shared_rms_norm"), "rms_norm"),
    **dict.fromkeys(("batch_norm", "instance_norm"), "batch_norm"),
    "group_norm": "group_norm",
    **dict.fromkeys(("sort", "argsort"), "sort"),
    "topk": "topk",
    **dict.fromkeys(("mse_loss", "l1_loss", "mean_loss"), "squared_error"),
    **{f"max_pool{n}d": "max_pool" for n in (1, 2, 3)},
    **{f"avg_pool{n}d": "avg_pool" for n in (1, 2, 3)},
    "dropout": "dropout",
    "linear": "linear",
    **dict.fromkeys(("mm", "mv", "dot", "addmm"), "matmul"),
    **dict.fromkeys(("bmm", "matmul", "baddbmm", "einsum"), "bmm"),
    **dict.fromkeys(GROUPED_PRODUCTS, "grouped_mm"),
    **dict.fromkeys((*ATTENTIONS, RING), "attention"),
    **dict.fromkeys(CONVOLUTIONS, "convolution"),
}


def name_of(op: Op) -> str:
    return packet(op.target)


def literals(op: Op) -> Any:
    """The arguments that change what an op costs beside its shapes; the rest need not tell ops apart."""
    name = packet(op.target)
    return (op.args[1:], op.kwargs) if name in _BY_LITERALS else None


_BY_LITERALS = frozenset(
    {
        *ATTENTIONS,
        RING,
        *MIXTURES,
        "dropout",
        "sum",
        "mean",
        "softmax",
        "log_softmax",
        "group_norm",
        "layer_norm",
        "rms_norm",
    }
    | {f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)}
)
