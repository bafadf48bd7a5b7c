"""Seconds and working bytes of the nodes of a traced graph, on one device.

Eager: each op is a kernel that reads its operands and writes its results. Compiled: chains of elementwise ops and
reductions are fused, so that only what another kind of op reads, or what is handed out, is written at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
from torch import Tensor, fx

from meshwright.cluster import Device, Mesh, collective_s
from meshwright.cluster.profile_load import profile_of
from meshwright.cost.traced.fusible import bytes_of, is_fusible, readers, stored, tensors_of
from meshwright.cost.traced.slow import extra_s
from meshwright.cost.traced.storage import is_part, is_view
from meshwright.torch_compat import argument_names

PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
ATTENTIONS = ("aten._scaled_dot_product", "aten._flash_attention", "aten._efficient_attention")
MULTIPLIES = (*PRODUCTS, *ATTENTIONS, "aten.convolution")
SHORTEST_S = 2e-6
"""No kernel takes less, however little it moves."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class NodeCosts:
    """`fused`: the graph will be compiled. `mesh`: for the collectives of a sharded segment. `steady`: how much longer
    products take than alone, and what moves memory."""

    def __init__(
        self, device: Device, fused: bool = False, mesh: Mesh | None = None, steady: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        self.device, self.fused, self.mesh, self.steady = device, fused, mesh, steady
        self._profile = profile_of(device)
        self.rate = device.memory_bandwidth * device.achievable_fraction("memory") / steady[1]

    def seconds(self, node: fx.Node) -> float:
        if node.op != "call_function" or is_part(node) or is_view(node):
            return 0.0
        name = str(node.target)
        if name.startswith("meshwright.") and name.split(".")[1].removesuffix("_max") in COLLECTIVES:
            return self._collective(node)
        written = bytes_of(tensors_of(node.meta.get("val")))
        if self.fused and is_fusible(node):
            if not self.is_written(node):
                return 0.0
            return written / self.rate + self.extra_s(node)
        read = sum(bytes_of(tensors_of(other.meta.get("val"))) for other in dict.fromkeys(node.all_input_nodes))
        return self.steady[0] * self._product(node) or SHORTEST_S + (read + written) / self.rate

    def under_load(self, nodes: Iterable[fx.Node], seconds: float) -> NodeCosts:
        """The same costs in the midst of a step in which these take so long altogether."""
        products = [node for node in nodes if str(node.target).startswith(MULTIPLIES)]
        if not products:
            return self
        steady = self._profile.steady(_dtype(products[0])[0], sum(map(_flops, products)) / seconds)
        return NodeCosts(self.device, self.fused, self.mesh, steady)

    def extra_s(self, node: fx.Node) -> float:
        """What a fused op takes besides moving its bytes."""
        return extra_s(node, self._profile, self.rate)

    def makes_again_s(self, node: fx.Node, reads: bool) -> float:
        """What running an op once more adds. `reads`: a fused op as a kernel of its own; else it joins one that reads
        what it reads."""
        found = self.seconds(node)
        if not (self.fused and reads and is_fusible(node)) or node.op != "call_function" or is_part(node):
            return found
        return found + bytes_of(t for n in stored(node) for t in tensors_of(n.meta.get("val"))) / self.rate

    def is_written(self, node: fx.Node) -> bool:
        """Whether the node's result is memory at all: not what fused ops alone read."""
        if not self.fused or not is_fusible(node):
            return True
        return any(not is_fusible(user) for user in readers(node))

    def working_bytes(self, node: fx.Node) -> int:
        """What a kernel allocates besides its results: fused attention sums the queries' gradient in 32 bits, and so
        does a compiled embedding its weight's; a convolution of images that lie channels last turns its weight, and
        its gradient."""
        name = str(node.target)
        if self.fused and name == "aten.embedding_dense_backward.default":
            return int(4 * node.meta["val"].numel())
        padded = self._padded_bytes(node) if node.op == "call_function" else 0
        if padded:
            return padded
        if name.startswith("aten.convolution") and self._lies_last(node):
            backward = "backward" in name
            return (1 + backward) * _turned_bytes(node.all_input_nodes[1 + backward])
        if "attention" not in name or "backward" not in name or self.device.kind != "cuda":
            return 0
        query = node.args[1]
        assert isinstance(query, fx.Node)
        found = query.meta["val"]
        return int(4 * found.numel() + 4 * prod(found.shape[:-1]))

    def _padded_bytes(self, node: fx.Node) -> int:
        """Of the copies that a compiler makes of a product's operands to have its sizes in eights: half precision is
        many times slower otherwise."""
        if not self.fused or self.device.kind != "cuda" or not str(node.target).startswith(PRODUCTS):
            return 0
        first = 1 if "add" in str(node.target) else 0
        operands = node.all_input_nodes[first:]
        values = [other.meta["val"] for other in (operands[0], operands[min(1, len(operands) - 1)])]
        if values[0].element_size() != 2:
            return 0
        return sum(bytes_of([value]) for value in values if any(size % 8 for size in value.shape[-2:]))

    def _product(self, node: fx.Node) -> float:
        """Of matrix products, attention and convolution; zero for every other op."""
        name = str(node.target)
        values = [other.meta.get("val") for other in node.all_input_nodes]
        shapes = [tuple(value.shape) if isinstance(value, Tensor) else () for value in values]
        dtype, itemsize = _dtype(node)
        if name.startswith(PRODUCTS):
            first = 1 if "add" in name else 0
            a, b = node.all_input_nodes[first], node.all_input_nodes[min(first + 1, len(values) - 1)]
            (*batch, m, k), n = a.meta["val"].shape, b.meta["val"].shape[-1]
            layout = "tn" if _is_turned(a) else "nt" if _is_turned(b) else "nn"
            found = self._profile.matmul_s(layout, dtype, itemsize, m, n, k, prod(batch))
            copied = self._padded_bytes(node)
            if not copied:
                return found
            m, n, k = (-(-size // 8) * 8 for size in (m, n, k))
            even_s = self._profile.matmul_s(layout, dtype, itemsize, m, n, k, prod(batch))
            return min(found, even_s + 2 * copied / self.rate)
        if "scaled_dot_product" in name or "flash_attention" in name:
            backward = "backward" in name
            query, key = shapes[backward], shapes[backward + 1]
            variant = _attention_variant(node, query[-3] != key[-3])
            side = "backward" if backward else "forward"
            groups = max(1, prod(query[:-2]) // prod(key[:-2]))
            sizes = (prod(query[:-2]), query[-2], key[-2], query[-1], groups)
            return self._profile.attention_s(variant, side, dtype, itemsize, *sizes)
        if name.startswith("aten.convolution"):
            return self._convolution(node, shapes, dtype, itemsize)
        return 0.0

    def _convolution(self, node: fx.Node, shapes: list[tuple[int, ...]], dtype: str, itemsize: int) -> float:
        backward = "backward" in str(node.target)
        x, weight = shapes[backward], shapes[backward + 1]
        swept = shapes[0] if backward else tuple(node.meta["val"].shape)
        image, wide, groups = max(1, prod(swept[2:])), prod(x[2:]), max(1, x[1] // weight[1])
        sizes = (swept[0], image, weight[1], weight[0], prod(weight[2:]), max(image, wide), groups)
        sides = ("input", "weight") if backward else ("forward",)
        seconds = self._profile.channels_last_s if self._lies_last(node) else self._profile.convolution_s
        return sum((seconds(side, dtype, itemsize, sizes) for side in sides), start=0.0)

    def _lies_last(self, node: fx.Node) -> bool:
        """Whether a convolution will be given images that lie channels last (`generate.strides`)."""
        backward = "backward" in str(node.target)
        x, weight = (other.meta["val"].shape for other in node.all_input_nodes[backward : backward + 2])
        return self.fused and self.device.kind == "cuda" and len(x) == 4 and x[1] == weight[1]

    def _collective(self, node: fx.Node) -> float:
        if self.mesh is None:
            return 0.0
        name = str(node.target).split(".")[1].removesuffix("_max")
        axis = next(arg for arg in node.args if isinstance(arg, str))
        sizes = [bytes_of(tensors_of(other.meta.get("val"))) for other in (node, *node.all_input_nodes)]
        return collective_s(name, max(sizes), self.mesh.axis(axis))


def _flops(node: fx.Node) -> float:
    """Of a node of `MULTIPLIES`."""
    name, values = str(node.target), [other.meta["val"] for other in node.all_input_nodes]
    back = "backward" in name
    if name.startswith(PRODUCTS):
        return 2.0 * float(node.meta["val"].numel()) * float(values["add" in name].shape[-1])
    if name.startswith("aten.convolution"):
        swept, weight = (values[0], values[2]) if back else (node.meta["val"], values[1])
        return (4.0 if back else 2.0) * float(swept.numel()) * float(weight.numel()) / float(weight.shape[0])
    query, key = values[back], values[back + 1]
    given = dict(zip(argument_names(node.target), node.args, strict=False)) | node.kwargs
    seen = 0.5 if given.get("is_causal") else 1.0
    return (10.0 if back else 4.0) * seen * float(query.numel()) * float(key.shape[-2])


def _attention_variant(node: fx.Node, grouped: bool) -> str:
    """Which of the kinds that calibration tells apart."""
    given = dict(zip(argument_names(node.target), node.args, strict=False)) | node.kwargs
    bias = given.get("attn_bias", given.get("attn_mask"))
    if isinstance(bias, fx.Node):
        # Half precision has another kernel for masks, which makes no gradient of them.
        return "bias" if "efficient" in str(node.target) and _dtype(node)[1] == 2 else "mask"
    return "grouped" if grouped else "causal" if given.get("is_causal") else "plain"


def _turned_bytes(weight: fx.Node) -> int:
    """Of a copy that lies channels last: where a window is one pixel, rows lie so too."""
    value = weight.meta["val"]
    return 0 if value.is_contiguous(memory_format=torch.channels_last) else bytes_of([value])


def _is_turned(node: fx.Node) -> bool:
    """Whether a product reads an operand across its rows."""
    value = node.meta["val"]
    return bool(value.ndim > 1 and value.stride(-1) != 1 and value.stride(-2) == 1)


def _dtype(node: fx.Node) -> tuple[str, int]:
    tensors = [t for other in (*node.all_input_nodes, node) for t in tensors_of(other.meta.get("val"))]
    floats = [t for t in tensors if t.is_floating_point()]
    return (str(floats[0].dtype).removeprefix("torch."), floats[0].element_size()) if floats else ("float32", 4)
