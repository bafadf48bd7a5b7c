"""Bytes that reductions of a GPU write down of their shares, as an H200's allocator counted them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.cluster.profile_load import device_of
from meshwright.cost.op.convolution import depthwise_work
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.profile.working import column_sum_bytes
from meshwright.torch_compat import fake_mode, fake_tensor, trace_joint

H200 = device_of("H200-SXM-141GB")
MIB = 1 << 20
SEEN = [
    *((6272, 512, 24.5), (6272, 2048, 98.0), (25088, 256, 49.0), (25088, 1024, 132.0), (401408, 64, 33.0)),
    *((3136, 1280, 30.625), (3136, 5120, 122.5), (12544, 640, 61.25), (12544, 2560, 132.5), (50176, 320, 110.0)),
    *((200704, 160, 82.5), (7168, 1152, 63.0), (128, 2, 0.0)),
]


@pytest.mark.parametrize(("rows", "columns", "mib"), SEEN)
def test_sums_over_rows_need_what_was_seen(rows: int, columns: int, mib: float) -> None:
    assert column_sum_bytes(rows, columns) == mib * MIB


def test_sums_of_odd_columns() -> None:
    assert column_sum_bytes(4096, 12005) == pytest.approx(2.93 * MIB, rel=2e-3)


def summed(shape: tuple[int, ...], strides: tuple[int, ...], dims: list[int], fused: bool = False) -> int:
    mode = fake_mode()

    def call(x: Tensor) -> list[Tensor]:
        return [torch.ops.aten.sum.dim_IntList(x, dims)]

    given = fake_tensor(shape, torch.bfloat16, mode).as_strided(shape, strides)
    nodes = trace_joint(call, [given], mode).graph.nodes
    found = [node for node in nodes if str(node.target) == "aten.sum.dim_IntList"]
    return NodeCosts(H200, fused=fused).working_bytes(found[0])


def test_how_a_tensor_lies_decides() -> None:
    shape = (128, 7, 7, 512)
    assert summed(shape, (25088, 3584, 512, 1), [0, 1, 2]) == 24.5 * MIB
    assert summed(shape, (25088, 7, 1, 49), [0, 1, 2]) == 0, "channels first: their pixels lie side by side"
    assert summed(shape, (25088, 3584, 512, 1), [3]) == 0
    assert summed((1, 1), (1, 1), [0]) == 0
    assert summed(shape, (25088, 3584, 512, 1), [0, 1, 2], fused=True) == 0


@pytest.mark.parametrize(("fused", "times"), [(False, 1), (True, 0)])
def test_the_gradient_of_a_softmax_needs_a_product(fused: bool, times: int) -> None:
    """Attention of Qwen3 in fp32, 5 x 10 heads of 1152: 253.1 MiB besides the result were seen."""
    mode = fake_mode()
    shape = (5, 10, 1152, 1152)

    def call(gradient: Tensor, result: Tensor) -> list[Tensor]:
        return [torch.ops.aten._softmax_backward_data(gradient, result, -1, torch.float32)]

    nodes = trace_joint(call, [fake_tensor(shape, torch.float32, mode) for _ in range(2)], mode).graph.nodes
    found = [node for node in nodes if "_softmax_backward_data" in str(node.target)]
    assert NodeCosts(H200, fused=fused).working_bytes(found[0]) == times * 265_420_800


def test_the_gradient_of_a_convolutions_bias_is_such_a_sum() -> None:
    mode = fake_mode()
    shapes = [(64, 128, 56, 56), (64, 128, 56, 56), (128, 1, 7, 7)]
    fakes = [fake_tensor(shape, torch.bfloat16, mode) for shape in shapes]
    fakes[:2] = [fake.contiguous(memory_format=torch.channels_last) for fake in fakes[:2]]

    def call(g: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
        rest = ([128], [1, 1], [3, 3], [1, 1], False, [0, 0], 128, [True, True, True])
        return list(torch.ops.aten.convolution_backward.default(g, x, w, *rest))

    nodes = trace_joint(call, fakes, mode).graph.nodes
    found = next(node for node in nodes if str(node.target) == "aten.convolution_backward.default")
    assert NodeCosts(H200).working_bytes(found) == 132 * MIB


DEPTHWISE = [
    *((torch.bfloat16, 216, 832, 7, 7, 268.73), (torch.bfloat16, 64, 384, 14, 7, 36.75)),
    *((torch.bfloat16, 128, 512, 14, 3, 18.0), (torch.bfloat16, 64, 960, 7, 5, 46.88)),
    *(
        (torch.float32, 216, 832, 7, 7, 0.16 * 2),
        (torch.float32, 216, 208, 28, 7, 1085.5),
        (torch.float32, 64, 96, 56, 7, 597.5),
    ),
]
"""Dtype, images, channels, their side, the window's; MiB besides the gradient on an H200 with torch 2.11."""


@pytest.mark.parametrize(("dtype", "images", "channels", "side", "window", "mib"), DEPTHWISE)
def test_the_gradient_of_depthwise_windows(
    dtype: torch.dtype, images: int, channels: int, side: int, window: int, mib: float
) -> None:
    mode = fake_mode()
    shape = (images, channels, side, side)
    fakes = [fake_tensor(one, dtype, mode) for one in (shape, shape, (channels, 1, window, window))]
    fakes[:2] = [fake.contiguous(memory_format=torch.channels_last) for fake in fakes[:2]]

    def call(g: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
        rest = ([channels], [1, 1], [window // 2] * 2, [1, 1], False, [0, 0], channels, [False, True, False])
        return [torch.ops.aten.convolution_backward.default(g, x, w, *rest)[1]]

    nodes = trace_joint(call, fakes, mode).graph.nodes
    found = next(node for node in nodes if str(node.target) == "aten.convolution_backward.default")
    assert NodeCosts(H200).working_bytes(found) / MIB == pytest.approx(mib, rel=0.02, abs=0.5)


def test_larger_depthwise_windows_read_and_write_no_more() -> None:
    assert depthwise_work(900, 9) == pytest.approx(900)
    assert depthwise_work(900, 49) == pytest.approx(3.53 * 900, rel=0.01)


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, 4 * 1000 * 64), (torch.float32, 0)])
def test_a_compiled_embeddings_gradient_is_summed_in_32_bits(dtype: torch.dtype, expected: int) -> None:
    mode = fake_mode()

    def call(gradient: Tensor, rows: Tensor) -> list[Tensor]:
        return [torch.ops.aten.embedding_dense_backward(gradient, rows, 1000, -1, False)]

    given = [fake_tensor((8, 64), dtype, mode), fake_tensor((8,), torch.int64, mode)]
    nodes = trace_joint(call, given, mode).graph.nodes
    found = [node for node in nodes if "embedding_dense_backward" in str(node.target)]
    assert NodeCosts(H200, fused=True).working_bytes(found[0]) == expected
