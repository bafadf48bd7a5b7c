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
    weight, and its gradient, which sums many shares where each channel has a window of its own; its bias's gradient is
    a sum over rows, as are those of broadcast operands: blocks of threads write down their shares. A softmax's gradient
    multiplies what it is given by the result first. A compiler's kernels do neither. fused: the graph is compiled."""
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
    if not backward:
        return turned
    (gradient, main, weight), mask = map(_value, node.args[:3]), node.args[-1]
    assert isinstance(mask, list | tuple)
    shares = _depthwise_bytes(main, weight) if mask[1] else 0
    summed = _sum_bytes(gradient, (0, 2, 3), multiprocessors) if mask[2] and not fused else 0
    return max(turned, shares, summed)


def _depthwise_bytes(main: Tensor, weight: Tensor) -> int:
    """Of the gradient of windows that read one channel each, channels last. Seen on an H200 (torch 2.11): in half
    precision eight sums in 32 bits for every window of every image up to 7 x 7; in single precision eight copies of
    images of 28 x 28 and more under windows of 7 x 7."""
    alone = weight.dim() == 4 and weight.shape[1] == 1 and main.shape[1] == weight.shape[0] > 1
    window = prod(weight.shape[2:])
    if not alone or window > 49:
        return 0
    if main.element_size() == 2:
        return 8 * 4 * prod(main.shape[:2]) * window
    return 8 * bytes_of([main]) if window == 49 and min(main.shape[2:]) >= 28 else 0


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
