"""What kernels of a GPU allocate besides their results."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, fx

from meshwright.cost.traced.call import order_of
from meshwright.cost.traced.fusible import bytes_of
from meshwright.profile.working import column_sum_bytes


def working_bytes(node: fx.Node, multiprocessors: int, fused: bool, lies_last: Callable[[fx.Node], bool]) -> int:
    """Fused attention sums the queries' gradient in 32 bits. A convolution of images that lie channels last turns its
    weight, and its gradient; its bias's gradient is a sum over rows, as are those of broadcast operands: blocks of
    threads write down their shares. A softmax's gradient multiplies what it is given by the result first. A compiler's
    kernels do neither. fused: the graph is compiled."""
    name = str(node.target)
    if "attention" in name and "backward" in name:
        query = _value(node.args[1])
        return int(4 * query.numel() + 4 * prod(query.shape[:-1]))
    if name.startswith("aten.sum.dim_IntList") and not fused:
        return _sum_bytes(_value(node.args[0]), node.args[1], multiprocessors)
    if name.startswith("aten._softmax_backward_data") and not fused:
        return bytes_of([_value(node.args[0])])
    if not name.startswith("aten.convolution") or not lies_last(node):
        return 0
    backward = "backward" in name
    turned = (1 + backward) * _turned_bytes(_value(node.all_input_nodes[1 + backward]))
    if not backward or fused:
        return turned
    mask, gradient = node.args[-1], _value(node.args[0])
    summed = isinstance(mask, list | tuple) and mask[2]
    return max(turned, _sum_bytes(gradient, (0, 2, 3), multiprocessors) if summed else 0)


def _sum_bytes(main: Tensor, dims: object, multiprocessors: int) -> int:
    """Of a sum over leading dims, by how they lie in memory; others need little."""
    if not isinstance(dims, list | tuple) or not dims or not main.numel():
        return 0
    inside = {int(dim) % main.dim() for dim in dims}
    rows = [dim in inside for dim in order_of(main)]
    if not rows or rows[-1] or rows != sorted(rows, reverse=True):
        return 0
    height = prod(main.shape[dim] for dim in inside)
    return column_sum_bytes(height, main.numel() // height, multiprocessors)


def _turned_bytes(weight: Tensor) -> int:
    """Of a copy that lies channels last: where a window is one pixel, rows lie so too."""
    return 0 if weight.is_contiguous(memory_format=torch.channels_last) else bytes_of([weight])


def _value(node: object) -> Tensor:
    assert isinstance(node, fx.Node)
    found = node.meta["val"]
    assert isinstance(found, Tensor)
    return found
