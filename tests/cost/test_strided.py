"""Elementwise kernels and sums whose operands lie apart, against what an H200 took for them (Mamba2, fp32)."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, fx

from meshwright.cluster.device_table import GPUS
from meshwright.cluster.profile_load import profile_of
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.strided import walk_s, walked_dims

H200 = GPUS["H200-SXM-141GB"].device
WIDE, SQUARE = (4, 4, 128, 128, 24, 64), (4, 4, 128, 24, 64, 64)


class Lies(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def tensor(lies: Lies) -> Tensor:
    return torch.empty_strided(*lies, device="meta")


MULTIPLIED = [
    (Lies(SQUARE, (786432, 196608, 1536, 64, 1, 0)), Lies(SQUARE, (786432, 196608, 1536, 64, 0, 1)), 3, 0.515e-3),
    (Lies(WIDE, (786432, 196608, 1536, 0, 64, 1)), Lies(WIDE, (786432, 196608, 0, 1536, 64, 1)), 4, 1.219e-3),
    (Lies(WIDE, (1572864, 393216, 3072, 24, 1, 0)), Lies(WIDE, (786432, 196608, 1536, 0, 64, 1)), 4, 1.218e-3),
    (Lies(SQUARE, (786432, 196608, 1536, 64, 0, 1)), Lies(SQUARE, (786432, 128, 1, 32768, 512, 0)), 5, 0.702e-3),
    (Lies(SQUARE, (786432, 196608, 1536, 64, 0, 1)), Lies(SQUARE, (491520, 98304, 0, 4096, 64, 1)), 6, 0.796e-3),
]
"""Two operands, both repeated; dims that are told apart; seconds."""


@pytest.mark.parametrize(("one", "other", "dims", "seconds"), MULTIPLIED)
def test_products_take_longer_the_more_dims_are_told_apart(one: Lies, other: Lies, dims: int, seconds: float) -> None:
    result = torch.empty(one.shape, device="meta")
    operands = [tensor(one), tensor(other)]
    assert walked_dims(result, operands) == dims
    assert walk_s(profile_of(H200), result, operands) == pytest.approx(seconds, rel=0.03)


def priced(target: object, args: tuple[object, ...], made: Tensor) -> float:
    graph = fx.Graph()
    nodes = []
    for value in args:
        if isinstance(value, Tensor):
            value, tensor = graph.placeholder(f"x{len(nodes)}"), value
            value.meta["val"] = tensor
        nodes.append(value)
    node = graph.call_function(target, tuple(nodes))  # type: ignore[arg-type]
    node.meta["val"] = made
    return NodeCosts(H200).seconds(node)


def test_lanes_that_read_far_apart_move_a_sector_each() -> None:
    turned = tensor(Lies((4, 4, 1, 128, 24, 64), (786432, 128, 128, 1, 32768, 512)))
    rows = tensor(Lies((4, 4, 128, 128, 24, 1), (1572864, 393216, 3072, 24, 1, 1)))
    assert priced(torch.ops.aten.mul.Tensor, (rows, turned), torch.empty(WIDE, device="meta")) == pytest.approx(
        2.423e-3, rel=0.12
    )
    product = tensor(Lies(WIDE, (100663296, 25165824, 196608, 1, 8192, 128)))
    summed = torch.empty((4, 4, 128, 128, 24, 1), device="meta")
    assert priced(torch.ops.aten.sum.dim_IntList, (product, [5], True), summed) == pytest.approx(2.705e-3, rel=0.03)


def test_operands_that_lie_like_the_result_are_one_row() -> None:
    x = torch.empty((8, 512, 768), device="meta")
    assert walked_dims(x, [x, x]) == 1
    assert walked_dims(x, [x, torch.empty(768, device="meta")]) == 2
    assert walked_dims(x, [x, torch.empty((8, 1, 768), device="meta")]) == 3
    assert walk_s(profile_of(H200), x, [x, torch.empty(768, device="meta")]) == 0.0, "calibrated"


SLICED = [
    ((16, 1024, 32000), 1, 1023, 1504e-6, 1919e-6),
    ((4, 512, 50257), 1, 511, 304e-6, 386e-6),
    ((16, 1024, 32000), 0, 16, 805e-6, 1430e-6),
    ((8, 32, 2048, 128), 3, 64, 126e-6, 160e-6),
    ((8, 2048, 12288), 2, 4096, 281e-6, 370e-6),
]
"""What was sliced, along which dim, how many of it; seconds of the slice's gradient in bf16 and in fp32."""


@pytest.mark.parametrize(("shape", "dim", "left", "half_s", "single_s"), SLICED)
def test_gradients_of_slices(shape: tuple[int, ...], dim: int, left: int, half_s: float, single_s: float) -> None:
    part = (*shape[:dim], left, *shape[dim + 1 :])
    for dtype, seconds in ((torch.bfloat16, half_s), (torch.float32, single_s)):
        made, read = (torch.empty(sizes, dtype=dtype, device="meta") for sizes in (shape, part))
        found_s = priced(torch.ops.aten.slice_backward.default, (read, list(shape), dim, 0, left, 1), made)
        assert found_s == pytest.approx(seconds, rel=0.1)
