"""Matrix products, attention and convolution among the nodes of a traced graph."""

from __future__ import annotations

from math import prod

from torch import Tensor, fx

from meshwright.cost.op.convolution import depthwise_work
from meshwright.cost.traced.call import Call
from meshwright.cost.traced.fusible import bytes_of, tensors_of

PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
ATTENTIONS = ("aten._scaled_dot_product", "aten._flash_attention", "aten._efficient_attention")
CONVOLUTION = "aten.convolution"
MULTIPLIES = (*PRODUCTS, *ATTENTIONS, CONVOLUTION)


def factors(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The two that a product multiplies; one twice where it is both."""
    first = 1 if "add" in str(node.target) else 0
    found = [other for other in node.args[first : first + 2] if isinstance(other, fx.Node)]
    return found[0], found[-1]


def padded_bytes(call: Call, rate: float) -> int:
    """Of the copies that a compiler makes of a product's operands to have its sizes in eights, at this rate: in half
    precision, where it measures a gain of a tenth. Sizes along which no operand lies need none."""
    values = [other.meta["val"] for other in factors(call.node)]
    if values[0].element_size() != 2:
        return 0
    copied = sum(bytes_of([value]) for value in values if any(size % 8 for size in value.shape[-2:]))
    return copied if copied and product_s(call) > 1.1 * product_s(call, copied, rate) else 0


def product_s(call: Call, copied: int = 0, rate: float = 1.0) -> float:
    """copied: bytes that are copied first, at this rate, to have sizes in eights."""
    a, b = (other.meta["val"] for other in factors(call.node))
    (*batch, m, k), n = a.shape, b.shape[-1]
    turned = _is_turned(a), _is_turned(b)
    layout = "tn" if turned[0] else "nt" if turned[1] else "nn"
    if call.name == "addmm" and layout == "nt" and not copied:
        layout = "bias"
    if copied:
        m, n, k = (-(-size // 8) * 8 for size in (m, n, k))
    dtype, itemsize = float_of(call.node)
    return call.on.matmul_s(layout, dtype, itemsize, m, n, k, prod(batch)) + 2 * copied / rate


def attention_s(call: Call) -> float:
    backward = "backward" in call.name
    shapes = [tuple(t.shape) for t in call.reads]
    query, key = shapes[backward], shapes[backward + 1]
    dtype, itemsize = float_of(call.node)
    variant = _variant(call, query[-3] != key[-3], itemsize)
    side = "backward" if backward else "forward"
    groups = max(1, prod(query[:-2]) // prod(key[:-2]))
    sizes = (prod(query[:-2]), query[-2], key[-2], query[-1], groups)
    return call.on.attention_s(variant, side, dtype, itemsize, *sizes)


def convolution_s(call: Call, lies_last: bool) -> float:
    """lies_last: images lie channels last."""
    sides = dict.fromkeys(convolution_sides(call), 0.0)
    for side in sides:
        sides[side] = _convolution_side_s(call, side, lies_last)
    return sum(sides.values())


def convolution_sides(call: Call) -> list[str]:
    """Which of the three products it is, and a bias's part."""
    given, backward = call.given(), "backward" in call.name
    if not backward:
        return ["forward", *(["bias"] if isinstance(given.get("bias"), fx.Node) else [])]
    mask = given.get("output_mask", (True, True, False))
    assert isinstance(mask, list | tuple)
    return [side for side, asked in zip(("input", "weight", "bias_sum"), mask, strict=True) if asked]


def _convolution_side_s(call: Call, side: str, lies_last: bool) -> float:
    backward = "backward" in call.name
    x, weight = call.reads[backward], call.reads[backward + 1]
    output = call.reads[0] if backward else call.makes[0]
    dtype, itemsize = float_of(call.node)
    if side == "bias":
        return call.on.kernel_s("bias.forward", dtype, 2 * bytes_of([output]))
    if side == "bias_sum":
        channels = output.shape[1]
        return call.on.rows_s("channel_sum", "forward", dtype, itemsize, channels, output.numel() // max(1, channels))
    groups = max(1, x.shape[1] // weight.shape[1])
    if groups > 1 and groups == x.shape[1]:  # each channel by itself; both gradients were measured as one
        name, window = "depthwise", prod(weight.shape[2:])
        work = depthwise_work(bytes_of([output]), window)
        if lies_last and "depthwise_last.forward" in call.on.tables.kernels:
            name, work = "depthwise_last", bytes_of([output]) * window / 9
        both_s = call.on.kernel_s(f"{name}.{'forward' if side == 'forward' else 'backward'}", dtype, work)
        return both_s if side == "forward" else both_s / 2
    image, wide = max(1, prod(output.shape[2:])), prod(x.shape[2:])
    sizes = (output.shape[0], image, weight.shape[1], weight.shape[0], prod(weight.shape[2:]), max(image, wide), groups)
    seconds = call.on.channels_last_s if lies_last else call.on.convolution_s
    return seconds(side, dtype, itemsize, sizes)


def flops(call: Call) -> float:
    """Of a node of `MULTIPLIES`."""
    node, back = call.node, "backward" in call.name
    values = [other.meta["val"] for other in node.all_input_nodes]
    if str(node.target).startswith(PRODUCTS):
        return 2.0 * float(node.meta["val"].numel()) * float(factors(node)[0].meta["val"].shape[-1])
    if call.name.startswith("convolution"):
        output, weight = (values[0], values[2]) if back else (node.meta["val"], values[1])
        return (4.0 if back else 2.0) * float(output.numel()) * float(weight.numel()) / float(weight.shape[0])
    query, key = values[back], values[back + 1]
    seen = 0.5 if call.given().get("is_causal") else 1.0
    return (10.0 if back else 4.0) * seen * float(query.numel()) * float(key.shape[-2])


def _variant(call: Call, grouped: bool, itemsize: int) -> str:
    """Which of the kinds that calibration tells apart."""
    given = call.given()
    bias = given.get("attn_bias", given.get("attn_mask"))
    if isinstance(bias, fx.Node):
        # Half precision has another kernel for masks, which makes no gradient of them.
        return "bias" if "efficient" in call.name and itemsize == 2 else "mask"
    return "grouped" if grouped else "causal" if given.get("is_causal") else "plain"


def _is_turned(value: Tensor) -> bool:
    """Whether a product reads an operand across its rows."""
    return bool(value.ndim > 1 and value.stride(-1) != 1 and value.stride(-2) == 1)


def float_of(node: fx.Node) -> tuple[str, int]:
    tensors = [t for other in (*node.all_input_nodes, node) for t in tensors_of(other.meta.get("val"))]
    floats = [t for t in tensors if t.is_floating_point()]
    return (str(floats[0].dtype).removeprefix("torch."), floats[0].element_size()) if floats else ("float32", 4)
