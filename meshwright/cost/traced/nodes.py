"""Seconds and working bytes of the nodes of a traced graph, on one device.

Eager: each op is a kernel that reads its operands and writes its results. Compiled: chains of elementwise ops and
reductions are fused, so that only what another kind of op reads, or what is handed out, is written at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import torch
from torch import fx

from meshwright.cluster import Device, Mesh, collective_s
from meshwright.cluster.device_profile import DeviceProfile
from meshwright.cluster.profile_load import profile_of
from meshwright.cost.traced.call import call_of
from meshwright.cost.traced.eager import eager_s
from meshwright.cost.traced.fusible import bytes_of, is_fusible, readers, stored, tensors_of
from meshwright.cost.traced.multiply import (
    CONVOLUTION,
    MULTIPLIES,
    PRODUCTS,
    attention_s,
    convolution_s,
    float_of,
    flops,
    padded_bytes,
    product_s,
)
from meshwright.cost.traced.slow import extra_s
from meshwright.cost.traced.storage import is_part, is_view
from meshwright.cost.traced.working import working_bytes

SHORTEST_S = 2e-6
"""No kernel takes less, however little it moves."""

BETWEEN_S = 2e-6
"""From one kernel to the next of another kind, beyond what calls of one kind take back to back, which calibration
times: steps of DiT, GPT and ViT in bf16 on an H200, which wait for no host, were 1.5 to 2.5 microseconds a kernel
longer than the kernels in them."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class NodeCosts:
    """`fused`: the graph will be compiled. `mesh`: for the collectives of a sharded segment. `steady`: how much longer
    products take than alone, and what moves memory."""

    def __init__(
        self, device: Device, fused: bool = False, mesh: Mesh | None = None, steady: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        self.device, self.fused, self.mesh, self.steady = device, fused, mesh, steady
        self.profile = profile_of(device)
        self._key = (_number(self.profile), fused)
        self.between_s = BETWEEN_S if device.kind == "cuda" else 0.0
        self.rate = device.memory_bandwidth * device.achievable_fraction("memory") / steady[1]

    def seconds(self, node: fx.Node) -> float:
        if node.op != "call_function" or is_part(node) or is_view(node):
            return 0.0
        name = str(node.target)
        if name.startswith("meshwright.") and name.split(".")[1].removesuffix("_max") in COLLECTIVES:
            return self._collective(node)
        if self.fused and is_fusible(node):
            if not self.is_written(node):
                return 0.0
            written = bytes_of(tensors_of(node.meta.get("val")))
            return written / self.rate + self.extra_s(node)
        multiplies = name.startswith(MULTIPLIES)
        return self.between_s + self.steady[0 if multiplies else 1] * self._alone_s(node, name, multiplies)

    def _alone_s(self, node: fx.Node, name: str, multiplies: bool) -> float:
        """A kernel of its own on an idle device; a node remembers it, and so do copies that are made of it later."""
        known: dict[tuple[int, bool], float] = node.meta.setdefault("alone_s", {})
        found = known.get(self._key)
        if found is None:
            found = self._multiply_s(node, name) if multiplies else eager_s(call_of(node, self.profile))
            known[self._key] = found
        return found

    def under_load(self, nodes: Iterable[fx.Node], seconds: float) -> NodeCosts:
        """The same costs in the midst of a step in which these take so long altogether."""
        products = [node for node in nodes if str(node.target).startswith(MULTIPLIES)]
        if not products:
            return self
        worked = sum(flops(call_of(node, self.profile)) for node in products)
        steady = self.profile.steady(float_of(products[0])[0], worked / seconds)
        return NodeCosts(self.device, self.fused, self.mesh, steady)

    def extra_s(self, node: fx.Node) -> float:
        """What a fused op takes besides moving its bytes."""
        return extra_s(node, self.profile, self.rate)

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
        """What a kernel allocates besides its results (`cost.traced.working`)."""
        padded = self._padded_bytes(node) if node.op == "call_function" else 0
        if padded:
            return padded
        if self.fused and str(node.target) == "aten.embedding_dense_backward.default":
            made = node.meta["val"]  # it is summed in 32 bits, then cast
            return int(4 * made.numel()) if made.element_size() < 4 else 0
        if self.device.kind != "cuda" or node.op != "call_function":
            return 0
        return working_bytes(node, self.profile.tables.units, self.fused, self._lies_last)

    def _padded_bytes(self, node: fx.Node) -> int:
        if not self.fused or self.device.kind != "cuda" or not str(node.target).startswith(PRODUCTS):
            return 0
        return padded_bytes(call_of(node, self.profile), self.rate)

    def _multiply_s(self, node: fx.Node, name: str) -> float:
        """Of matrix products, attention and convolution."""
        call = call_of(node, self.profile)
        if name.startswith(PRODUCTS):
            return product_s(call, self._padded_bytes(node), self.rate)
        if name.startswith(CONVOLUTION):
            return convolution_s(call, self._lies_last(node))
        return attention_s(call)

    def _lies_last(self, node: fx.Node) -> bool:
        """Whether a convolution will be given images that lie channels last (`generate.strides`)."""
        backward = "backward" in str(node.target)
        image, kernel = (other.meta["val"] for other in node.all_input_nodes[backward : backward + 2])
        if self.device.kind != "cuda" or image.dim() != 4:
            return False
        if not self.fused:
            return not image.is_contiguous() and image.is_contiguous(memory_format=torch.channels_last)
        return bool(image.shape[1] == kernel.shape[1])

    def _collective(self, node: fx.Node) -> float:
        if self.mesh is None:
            return 0.0
        name = str(node.target).split(".")[1].removesuffix("_max")
        axis = next(arg for arg in node.args if isinstance(arg, str))
        sizes = [bytes_of(tensors_of(other.meta.get("val"))) for other in (node, *node.all_input_nodes)]
        return collective_s(name, max(sizes), self.mesh.axis(axis))


_NUMBERS = count()


def _number(profile: DeviceProfile) -> int:
    """Of a profile, for as long as the process lives."""
    found = profile.memo.setdefault("number", next(_NUMBERS))
    assert isinstance(found, int)
    return found
