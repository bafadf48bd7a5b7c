"""Where values lie is where torch puts them: views, copies, and what strides decide."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meshwright.capture.program import Op, Ref, SegmentGraph, TensorType, Value
from meshwright.capture.targets import call
from meshwright.profile.places import foldable, places

X = Value("x", TensorType((4, 6, 8), "float32"), grad=True)
CPU = torch.device("cpu")


def chain(*steps: tuple[str, tuple[object, ...]]) -> tuple[SegmentGraph, dict[str, Tensor]]:
    """Ops applied one after the other to `x`, and the tensors they really make."""
    tensors, ops, last = {"x": torch.randn(4, 6, 8)}, [], "x"
    for index, (target, args) in enumerate(steps):
        bare = Op(target, (Ref(last), *args), (), (Value(f"v{index}", X.type),))
        (made,) = call(bare, tensors, CPU)
        last = f"v{index}"
        tensors[last] = made
        ops.append(Op(target, bare.args, (), (Value(last, TensorType(tuple(made.shape), "float32"), grad=True),)))
    return SegmentGraph((X,), (), (), (), tuple(ops), (last,)), tensors


CHAINS = {
    "reshape of a transpose copies": (("aten.transpose.int", (0, 1)), ("aten.reshape.default", ((24, 8),))),
    "reshape in order does not": (("aten.view.default", ((24, 8),)), ("aten.reshape.default", ((4, 48),))),
    "a pointwise op keeps the order": (("aten.permute.default", ((2, 0, 1),)), ("aten.gelu.default", ())),
    "contiguous copies where it must": (("aten.transpose.int", (1, 2)), ("aten.contiguous.default", ())),
    "contiguous of a contiguous": (("aten.slice.Tensor", (0, 1, 3)), ("aten.contiguous.default", ())),
    "slices are views": (("aten.slice.Tensor", (2, 2, 6)), ("aten.select.int", (1, 0)), ("aten.clone.default", ())),
    "an idle dropout": (("aten.transpose.int", (0, 1)), ("aten.dropout.default", (0.0, True))),
}


@pytest.mark.parametrize("name", CHAINS)
def test_values_lie_where_torch_puts_them(name: str) -> None:
    graph, tensors = chain(*CHAINS[name])
    found = places(graph)
    for value, tensor in tensors.items():
        assert found.of[value].strides == tensor.stride(), value
        shared = [
            v for v, t in tensors.items() if t.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        ]
        assert {found.of[v].storage for v in shared} == {shared[0]}


def test_masked_fill_writes_in_order_whatever_it_reads() -> None:
    mask = Value("mask", TensorType((8, 6, 4), "bool"))
    turned = Op("aten.transpose.int", (Ref("x"), 0, 2), (), (Value("turned", mask.type, grad=True),))
    args = (Ref("turned"), Ref("mask"), 0.0)
    filled = Op("aten.masked_fill.Scalar", args, (), (Value("filled", TensorType((8, 6, 4), "float32"), grad=True),))
    graph = SegmentGraph((X,), (mask,), (), (), (turned, filled), ("filled",))
    real = torch.randn(4, 6, 8).transpose(0, 2).masked_fill(torch.ones(8, 6, 4, dtype=torch.bool), 0.0)
    assert places(graph).of["filled"].strides == real.stride()


@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_dims_fold_where_a_reshape_is_a_view(order: list[int], sizes: list[int]) -> None:
    tensor = torch.empty(sizes).permute(order)
    flat = tensor.reshape(-1, tensor.shape[-1])
    is_view = flat.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert foldable(tensor.shape[:-1], tensor.stride()[:-1]) == is_view
