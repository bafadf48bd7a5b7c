"""Peaks of compiled graphs: what nobody reads again is written over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from meshwright.cluster.profile_load import device_of
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.peak import peak_bytes
from meshwright.torch_compat import fake_mode, fake_tensor, trace_joint

H200 = device_of("H200-SXM-141GB")
ROWS, WIDE, NARROW = 4096, 2048, 512
LARGE, SMALL = 2 * ROWS * WIDE, 2 * ROWS * NARROW


def peak(function: Callable[..., list[Tensor]], *shapes: Sequence[int], fused: bool = True, held: int = 0) -> int:
    """held: so many of the first arguments are counted elsewhere (parameters)."""
    mode = fake_mode()
    fakes = [fake_tensor(tuple(shape), torch.bfloat16, mode) for shape in shapes]
    module = trace_joint(function, fakes, mode)
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    return peak_bytes(module, names[:held], (), NodeCosts(H200, fused=fused))[0]


def product_then_gelu(weight: Tensor, gradient: Tensor, wide: Tensor) -> list[Tensor]:
    return [torch.ops.aten.gelu_backward(torch.mm(gradient, weight), wide)]


def test_an_elementwise_op_writes_over_what_it_alone_reads() -> None:
    """The product's result is the only one of its size that is there besides the argument."""
    shapes = [(NARROW, WIDE), (ROWS, NARROW), (ROWS, WIDE)]
    assert peak(product_then_gelu, *shapes, held=1) == 2 * LARGE + SMALL
    assert peak(product_then_gelu, *shapes, held=1, fused=False) == 3 * LARGE


def test_what_another_op_of_the_kernel_reads_is_not_written_over() -> None:
    def read_twice(weight: Tensor, gradient: Tensor, wide: Tensor) -> list[Tensor]:
        product = torch.mm(gradient, weight)
        return [torch.ops.aten.gelu_backward(product, wide), product * 2]

    shapes = [(NARROW, WIDE), (ROWS, NARROW), (ROWS, WIDE)]
    assert peak(read_twice, *shapes, held=1) == 4 * LARGE
