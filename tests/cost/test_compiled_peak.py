"""Peaks of compiled graphs: what nobody reads again is written over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
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


def test_what_an_earlier_result_of_the_kernel_reads_is_not_written_over() -> None:
    """A gated layer's backward: one kernel multiplies gate and other half again and makes the gradients of both. All
    six were seen at once on an H200."""

    def gated(weight: Tensor, back: Tensor, x: Tensor, gradient: Tensor) -> list[Tensor]:
        gate, other = torch.mm(x, weight), torch.mm(x, weight)
        again = torch.mm((gate * other).t(), gradient)
        product = torch.mm(gradient, back)
        return [again, torch.mm(product * other, weight.t()), torch.mm(product * gate, weight.t())]

    shapes = [(NARROW, WIDE), (NARROW, WIDE), (ROWS, NARROW), (ROWS, NARROW)]
    again = 2 * WIDE * NARROW
    assert peak(gated, *shapes, held=2) == 6 * LARGE + again


@pytest.mark.parametrize(("row", "forward", "backward"), [(512, 1, 2), (1024, 1, 2), (2048, 2, 2), (4096, 2, 3)])
def test_a_softmax_of_short_rows_writes_over_what_it_reads(row: int, forward: int, backward: int) -> None:
    """On an H200, scores in fp32: one of their size in forward up to rows of 992, two at 2048; in backward two up
    to 2048, three at 6000."""

    def attend(left: Tensor, right: Tensor) -> list[Tensor]:
        return [torch.softmax(torch.mm(left, right), -1)]

    def back(left: Tensor, right: Tensor, result: Tensor) -> list[Tensor]:
        return [torch.ops.aten._softmax_backward_data(torch.mm(left, right), result, -1, torch.bfloat16)]

    shapes, scores = [(ROWS, 16), (16, row)], 2 * ROWS * row
    assert peak(attend, *shapes, held=2) == forward * scores
    assert peak(back, *shapes, (ROWS, row), held=2) == backward * scores
