"""Device seconds of traced nodes that run as kernels of their own, by the device's tables.

A node is one kernel, or the few that eager PyTorch runs for it. Nodes are finer than a Program's ops (a gradient is a
node of its own), so each is read from one side of what was measured of the op. What no table names moves its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from torch import Tensor

from meshwright.cluster.device_profile import LOOKED_UP, VOCABULARY
from meshwright.cost.traced.call import Call, dtype_of, is_dense, order_of, seen_bytes
from meshwright.cost.traced.strided import sectors_s, summed_sectors_s, walk_s

Price = Callable[[Call], float]


def eager_s(call: Call) -> float:
    """Of every op but products, attention and convolution."""
    return PRICES.get(call.name, moved)(call)


def moved(call: Call) -> float:
    """Reads its operands and writes its results, element by element; what is repeated is read again, or found in the
    cache where working out its place takes longer."""
    way, read = _way(call, "multiply"), sum(t.numel() * t.element_size() for t in call.reads)
    if not call.makes or not (walked_s := walk_s(call.on, call.makes[0], call.reads)):
        return call.kernel(way, read + call.made_bytes)
    seen = sum(map(seen_bytes, call.reads))
    moved_s = call.kernel(way if way == "turned.forward" else "multiply.forward", seen + call.made_bytes)
    return max(moved_s, walked_s, sectors_s(call.on, call.makes[0], call.reads))


def _way(call: Call, plain: str) -> str:
    """Which of the measured kernels it is like: slower where operands are repeated or lie in another order."""
    if not call.makes:
        return f"{plain}.forward"
    result = call.makes[0]
    order, whole = order_of(result), [t for t in call.reads if t.numel() == result.numel()]
    orders = [order_of(t) for t in whole]
    if any(other[-1:] != order[-1:] for other in orders):
        return "turned.forward"
    repeated = any(1 < t.numel() < result.numel() for t in call.reads)
    if repeated or any(other != order for other in orders) or not all(map(is_dense, whole)):
        return "broadcast.forward"
    return f"{plain}.forward"


def activation(name: str, side: str) -> Price:
    """Calibration counts two tensors of the result's size, whatever backward reads."""

    def seconds(call: Call) -> float:
        way = _way(call, name)
        if way != f"{name}.forward":
            return max(moved(call), call.kernel(f"{name}.{side}", 2 * call.made_bytes))
        return call.kernel(f"{name}.{side}", 2 * call.made_bytes)

    return seconds


def cast(call: Call) -> float:
    """`_to_copy`: another dtype, or a copy."""
    read, made = call.reads[0], call.makes[0]
    if read.dtype == made.dtype:
        return copied(call)
    work = seen_bytes(read) + call.made_bytes
    seconds = call.on.kernel_s("cast.forward", dtype_of(read), work)
    return max(seconds, copied(call)) if order_of(read) != order_of(made) else seconds


def copied(call: Call) -> float:
    """Into the order of the result."""
    way = _way(call, "add")
    return call.kernel(way, 2 * call.made_bytes)


def filled(call: Call) -> float:
    return call.kernel("fill.forward", call.made_bytes)


def joined(call: Call) -> float:
    """Parts that lie otherwise than the result go through a slower kernel."""
    apart = any(not is_dense(t) or order_of(t) != order_of(call.makes[0]) for t in call.reads if t.numel() > 1)
    return call.kernel("turned.forward" if apart else "cat.forward", 2 * call.made_bytes)


def padded(call: Call) -> float:
    return call.kernel("pad.forward", call.reads[0].numel() * call.itemsize)


def put_into_zeros(call: Call) -> float:
    """The gradient of a slice: zeros, and the slice's gradient copied into them, as fast as a slice is copied."""
    part, whole = call.reads[-1], call.makes[0]
    rows = part.shape[1:] == whole.shape[1:] and part.is_contiguous()
    turned = part.dim() == whole.dim() and order_of(part)[-1:] != order_of(whole)[-1:]
    way = "add" if rows else "turned" if turned else "broadcast"
    return filled(call) + call.kernel(f"{way}.forward", 2 * seen_bytes(part))


def rolled(call: Call) -> float:
    """One copy for each dim, element by element."""
    dims = call.given().get("dims")
    times = len(dims) if isinstance(dims, list | tuple) and dims else 1
    return times * call.kernel("turned.forward", 2 * call.made_bytes)


def whole_rows(name: str, side: str, operand: int = 0) -> Price:
    """Rows of the last dims: of a norm as many as its statistics, else of the last dim."""

    def seconds(call: Call) -> float:
        main, wanted = call.reads[operand], call.given().get("output_mask")
        if isinstance(wanted, list | tuple) and not any(wanted[1:]):  # no weights: one kernel, as forward is
            return call.rows(name, "forward", main, _norm_rows(call, main))
        statistics = min((t.numel() for t in (*call.makes, *call.reads) if t.numel() > 1), default=1)
        units = _norm_rows(call, main) or statistics
        return call.rows(name, side, main, units)

    return seconds


def _norm_rows(call: Call, main: Tensor) -> int:
    shape = next((v for k, v in call.given().items() if k == "normalized_shape"), None)
    if isinstance(shape, list | tuple):
        return max(1, main.numel() // max(1, prod(int(n) for n in shape)))
    return prod(main.shape[:-1])


def log_softmax(side: str) -> Price:
    """Measured as part of a loss, whose own kernels read next to nothing but for the zeros that its gradient begins
    with."""

    def seconds(call: Call) -> float:
        main, dim = call.reads[0], call.given().get("dim", -1)
        width = main.shape[dim] if isinstance(dim, int) and main.dim() else 1
        found = call.rows("cross_entropy", side, main, main.numel() // max(1, width))
        return max(found / 2, found - filled(call)) if side == "backward" else found

    return seconds


def softmax(side: str) -> Price:
    def seconds(call: Call) -> float:
        main, dim = call.reads[0], call.given().get("dim", -1)
        width = main.shape[dim] if isinstance(dim, int) and main.dim() else 1
        return call.rows("softmax", side, main, main.numel() // max(1, width))

    return seconds


def group_norm(side: str) -> Price:
    def seconds(call: Call) -> float:
        given = call.given()
        main = call.reads[1 if side == "backward" else 0]
        samples, groups = given.get("N", main.shape[0]), given.get("group", 1)
        units = samples * groups if isinstance(samples, int) and isinstance(groups, int) else main.shape[0]
        return call.rows("group_norm", side, main, units)

    return seconds


def batch_norm(side: str) -> Price:
    def seconds(call: Call) -> float:
        main = max(call.reads, key=lambda t: t.numel())
        return call.rows("batch_norm", side, main, main.shape[1] if main.dim() > 1 else 1)

    return seconds


def summed(call: Call) -> float:
    """Over the last dims rows, over the first columns, over others as channels of images."""
    main, made = call.reads[0], call.makes[0]
    dims = call.given().get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    if not isinstance(dims, list | tuple) or not dims:
        return call.rows("mean", "forward", main, 1) if main.numel() > 1 else call.kernel("add.forward", 8)
    order = order_of(main)
    inside = {int(dim) % main.dim() for dim in dims}
    reduced = [dim in inside for dim in order]
    if main.numel() == made.numel() or not any(reduced):
        return copied(call)
    kernel = "column_sum" if not reduced[-1] else "channel_sum" if reduced[0] and not all(reduced) else "mean"
    found = call.rows(kernel, "forward", main, made.numel())
    return max(found, summed_sectors_s(call.on, main, made, sorted(inside)))


def looked_up(call: Call) -> float:
    return call.kernel("embedding.forward", call.made_bytes)


def table_gradient(call: Call) -> float:
    """As `cost.op.rows.embedding`: zeros for the whole table, then a time that depends on how many rows there are."""
    made, indices = call.makes[0], call.reads[1]
    whole = call.made_bytes
    more = whole - VOCABULARY * whole // max(1, made.shape[0])
    backward_s = call.kernel("embedding.backward", indices.numel() * LOOKED_UP * made.element_size())
    return backward_s + call.kernel("fill.forward", more)


def gathered(call: Call) -> float:
    return call.kernel("gather.forward", 2 * call.made_bytes)


def scattered(call: Call) -> float:
    """Rows added to others: what is written to is copied first."""
    rows = max((seen_bytes(t) for t in call.reads[1:] if t.is_floating_point()), default=call.made_bytes)
    return call.kernel("gather.backward", 2 * rows) + call.kernel("add.forward", 2 * call.made_bytes)


def of_main(name: str, side: str) -> Price:
    """Kernels whose work is the bytes of their main operand."""

    def seconds(call: Call) -> float:
        kernel = f"{name}.{side}" if f"{name}.{side}" in call.on.tables.kernels else "multiply.forward"
        main = call.makes[0] if side == "backward" else call.reads[0]
        return call.kernel(kernel, main.numel() * main.element_size())

    return seconds


def picked(call: Call) -> float:
    """The loss of log-probabilities: one number of each row, added up."""
    main, rows = call.reads[0], call.reads[1].numel()
    return call.on.rows_s("mean", "forward", dtype_of(main), main.element_size(), 1, max(1, rows))


def averaged(call: Call) -> float:
    """Images to one pixel each."""
    return call.rows("mean", "forward", call.reads[0], call.makes[0].numel())


def pooled(name: str, side: str) -> Price:
    def seconds(call: Call) -> float:
        window = call.given().get("kernel_size", (3, 3))
        share = (prod(window) / 9) ** 0.5 if isinstance(window, list | tuple) else 1.0
        main = call.makes[0]
        return call.kernel(f"{name}.{side}", main.numel() * main.element_size() * share)

    return seconds


def scanned(call: Call) -> float:
    """Sums along rows that are all written: read and written twice."""
    return call.kernel("turned.forward", 2 * (seen_bytes(call.reads[0]) + call.made_bytes))


def _all(names: Iterable[str], price: Price) -> dict[str, Price]:
    return dict.fromkeys(names, price)


PRICES: dict[str, Price] = {
    **_all(("gelu", "tanh", "erf", "softplus", "mish", "log_sigmoid_forward"), activation("gelu", "forward")),
    **_all(("gelu_backward", "softplus_backward", "mish_backward"), activation("gelu", "backward")),
    **_all(("silu", "sigmoid", "elu", "hardswish"), activation("silu", "forward")),
    **_all(("silu_backward", "elu_backward", "hardswish_backward"), activation("silu", "backward")),
    **_all(("relu", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "clamp", "reciprocal", "leaky_relu",
            "hardtanh", "pow", "square"), activation("relu", "forward")),
    **_all(("threshold_backward", "leaky_relu_backward", "hardtanh_backward"), activation("relu", "backward")),
    **_all(("_to_copy",), cast),
    **_all(("clone", "copy", "repeat", "flip", "contiguous", "view", "_unsafe_view", "reshape"), copied),
    **_all(("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "empty", "empty_like", "new_zeros",
            "new_full", "scalar_tensor", "arange", "eye", "fill"), filled),
    **_all(("roll",), rolled),
    **_all(("cat", "stack"), joined),
    **_all(("constant_pad_nd",), padded),
    **_all(("slice_backward", "select_backward", "slice_scatter", "select_scatter"), put_into_zeros),
    **_all(("native_layer_norm",), whole_rows("layer_norm", "forward")),
    **_all(("native_layer_norm_backward",), whole_rows("layer_norm", "backward")),
    **_all(("_fused_rms_norm", "gpu_rms_norm"), whole_rows("rms_norm", "forward")),
    **_all(("_fused_rms_norm_backward", "gpu_rms_norm_backward"), whole_rows("rms_norm", "backward")),
    **_all(("native_group_norm",), group_norm("forward")),
    **_all(("native_group_norm_backward",), group_norm("backward")),
    **_all(("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_functional", "_batch_norm_with_update",
            "_batch_norm_with_update_functional"), batch_norm("forward")),
    **_all(("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"), batch_norm("backward")),
    **_all(("_softmax",), softmax("forward")),
    **_all(("_softmax_backward_data",), softmax("backward")),
    **_all(("_log_softmax",), log_softmax("forward")),
    **_all(("_log_softmax_backward_data",), log_softmax("backward")),
    **_all(("sum", "mean", "amax", "amin", "var_mean", "var", "argmax", "logsumexp", "linalg_vector_norm"), summed),
    **_all(("embedding",), looked_up),
    **_all(("embedding_dense_backward",), table_gradient),
    **_all(("index", "index_select", "gather"), gathered),
    **_all(("index_put", "index_add", "scatter_add", "_unsafe_index_put"), scattered),
    **_all(("native_dropout",), of_main("dropout", "forward")),
    **_all(("native_dropout_backward",), of_main("dropout", "backward")),
    **_all(("sort",), of_main("sort", "forward")),
    **_all(("topk",), of_main("topk", "forward")),
    **_all(("nll_loss_forward", "nll_loss2d_forward"), picked),
    **_all(("nll_loss_backward", "nll_loss2d_backward"), filled),
    **_all(("mse_loss", "smooth_l1_loss"), of_main("squared_error", "forward")),
    **_all(("mse_loss_backward", "smooth_l1_loss_backward"), of_main("squared_error", "backward")),
    **_all(("max_pool2d_with_indices",), pooled("max_pool", "forward")),
    **_all(("max_pool2d_with_indices_backward",), pooled("max_pool", "backward")),
    **_all(("avg_pool2d",), pooled("avg_pool", "forward")),
    **_all(("avg_pool2d_backward",), pooled("avg_pool", "backward")),
    **_all(("_adaptive_avg_pool2d",), averaged),
    **_all(("cumsum", "cumprod"), scanned),
}  # fmt: skip
"""By an op's name."""
