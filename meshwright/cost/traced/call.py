"""One node of a traced graph, as its price sees it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from torch import Tensor, fx

from meshwright.cluster.device_profile import DeviceProfile
from meshwright.cost.traced.fusible import tensors_of
from meshwright.torch_compat import argument_names


class Call(NamedTuple):
    """name: of the op, without namespace and overload. reads: its operands, each once. makes: its results."""

    node: fx.Node
    name: str
    reads: tuple[Tensor, ...]
    makes: tuple[Tensor, ...]
    on: DeviceProfile

    @property
    def main(self) -> Tensor:
        """The largest of all: its dtype is the kernel's."""
        return max((*self.makes, *self.reads), key=lambda t: t.numel() * t.element_size())

    @property
    def dtype(self) -> str:
        return dtype_of(self.main)

    @property
    def itemsize(self) -> int:
        return self.main.element_size()

    @property
    def made_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.makes)

    def kernel(self, name: str, work: float) -> float:
        return self.on.kernel_s(name, self.dtype, work)

    def rows(self, name: str, side: str, main: Tensor, units: int) -> float:
        """A kernel that works through `units` rows of a tensor."""
        width = max(1, main.numel() // max(1, units))
        return self.on.rows_s(name, side, dtype_of(main), main.element_size(), max(1, units), width)

    def given(self) -> Mapping[str, object]:
        """Arguments by name."""
        return dict(zip(argument_names(self.node.target), self.node.args, strict=False)) | dict(self.node.kwargs)


def call_of(node: fx.Node, on: DeviceProfile) -> Call:
    reads = tuple(t for other in dict.fromkeys(node.all_input_nodes) for t in tensors_of(other.meta.get("val")))
    return Call(node, op_name(node), reads, tuple(tensors_of(node.meta.get("val"))), on)


def op_name(node: fx.Node) -> str:
    """`native_layer_norm` of `aten.native_layer_norm.default`."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def dtype_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def seen_bytes(tensor: Tensor) -> int:
    """Of distinct elements: what is repeated is read once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(size for size, stride in pairs if stride) * tensor.element_size()


def order_of(tensor: Tensor) -> tuple[int, ...]:
    """Dims of more than one element from the widest stride to the narrowest: how a tensor lies."""
    dims, strides = [dim for dim, size in enumerate(tensor.shape) if size > 1], tensor.stride()
    return tuple(sorted(dims, key=lambda dim: -strides[dim]))


def is_dense(tensor: Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order."""
    expected = 1
    for dim in reversed(order_of(tensor)):
        if tensor.stride(dim) != expected:
            return False
        expected *= tensor.shape[dim]
    return True
