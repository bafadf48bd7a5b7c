"""FLOPs agree with torch's counter for whole models, and with closed forms for single ops and pieces of them."""

from __future__ import annotations

import pytest
import torch
from family_programs import FAMILIES, captured, flat_ops, model_and_batch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from meshwright.capture import capture
from meshwright.cluster import logical_mesh
from meshwright.profile import (
    backward_bytes,
    backward_flops,
    backward_flops_by_operand,
    forward_flops,
    op_bytes,
    op_kind,
)
from meshwright.rules import strategies
from meshwright.rules.prove import case, run_by_position
from meshwright.rules.strategy import local_operands


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.full] * (name == "llama")) for name in FAMILIES]
)
def test_model_flops_equal_torchs_counter_forward_and_backward(family: str) -> None:
    model, batch = model_and_batch(family)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        loss = model(**batch)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as backward:
        loss.backward()
    ops, values = flat_ops(captured(family))
    assert sum(forward_flops(op, values) for op in ops) == forward.get_total_flops()
    assert sum(backward_flops(op, values) for op in ops) == backward.get_total_flops()


def test_causal_attention_is_half_where_masked_blocks_are_skipped() -> None:
    q, kv = floats(2, 4, 8, 16), floats(2, 2, 8, 16)
    given = case("aten.scaled_dot_product_attention.default", q, kv, kv, None, 0.0, True, enable_gqa=True)
    full = 4 * 2 * 4 * 8 * 8 * 16
    assert forward_flops(given.op, given.values()) == full
    assert forward_flops(given.op, given.values(), skip_masked=True) == full // 2
    assert backward_flops(given.op, given.values()) == 2 * full


def test_weight_and_input_gradients_are_told_apart() -> None:
    images, weight = torch.randn(2, 3, 8, 8), floats(4, 3, 3, 3)
    given = case("aten.conv2d.default", images, weight)
    flops = 2 * 2 * 4 * 6 * 6 * 3 * 3 * 3
    assert backward_flops_by_operand(given.op, given.values()) == (0, flops)


PRODUCTS = {
    "linear": lambda: case("aten.linear.default", floats(4, 6, 8), floats(10, 8), floats(10)),
    "attention": lambda: case(SDPA, floats(2, 4, 6, 8), floats(2, 2, 6, 8), floats(2, 2, 6, 8), **GROUPED),
    "conv2d": lambda: case("aten.conv2d.default", floats(2, 4, 5, 5), floats(6, 4, 3, 3), floats(6)),
    "grouped conv2d": lambda: case("aten.conv2d.default", floats(2, 4, 5, 5), floats(8, 1, 3, 3), groups=4),
    "conv_transpose2d": lambda: case("aten.conv_transpose2d.input", floats(2, 4, 5, 5), floats(4, 6, 3, 3)),
    "einsum": lambda: case("aten.einsum.default", "bij,bjk->bik", (floats(2, 4, 6), floats(2, 6, 8))),
}
SDPA, GROUPED = "aten.scaled_dot_product_attention.default", {"is_causal": True, "enable_gqa": True}


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_pieces_of_a_split_product_add_up(name: str) -> None:
    given = PRODUCTS[name]()
    mesh = logical_mesh({"x": 2})
    whole, back = forward_flops(given.op, given.values()), backward_flops(given.op, given.values())
    assert whole > 0
    for strategy in strategies(given.op, given.values(), mesh):
        local = local_operands(strategy, given.op, given.values(), mesh)
        parts = 1 if strategy.factors == (None,) else 2
        assert forward_flops(strategy.lowering, local) * parts == whole, strategy
        assert backward_flops(strategy.lowering, local) * parts == back, strategy
        assert op_kind(strategy.lowering) == op_kind(given.op)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_products_flops_equal_torchs_counter(name: str) -> None:
    given = PRODUCTS[name]()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        results = run_by_position(given.op, given.operands)
        forward = counter.get_total_flops()
        results[0].sum().backward()
    assert forward_flops(given.op, given.values()) == forward
    if "grouped" not in name:  # torch counts a grouped weight gradient as if it had no groups
        assert forward + backward_flops(given.op, given.values()) == counter.get_total_flops()


def test_einsum_counts_its_pairs() -> None:
    pair = case("aten.einsum.default", "...ij,...jk->...ik", (floats(2, 3, 4), floats(2, 4, 5)))
    three = case("aten.einsum.default", "ij,jk,kl->il", (floats(2, 3), floats(3, 4), floats(4, 5)))
    assert forward_flops(pair.op, pair.values()) == 2 * 2 * 3 * 4 * 5
    assert forward_flops(three.op, three.values()) == 2 * 2 * 3 * 4 + 2 * 2 * 4 * 5


def test_bytes_are_what_is_read_and_written() -> None:
    view = case("aten.view.default", floats(6, 4), (24,))
    add = case("aten.add.Tensor", floats(6, 4), floats(6, 4))
    gelu = case("aten.gelu.default", floats(6, 4))
    table = case("aten.embedding.default", floats(1000, 4), torch.zeros(6, dtype=torch.int64))
    assert (op_bytes(view.op, view.values()), backward_bytes(view.op, view.values())) == (0, 0)
    assert op_bytes(add.op, add.values()) == 3 * 96
    assert backward_bytes(add.op, add.values()) == 0
    assert op_bytes(gelu.op, gelu.values()) == 2 * 96
    assert backward_bytes(gelu.op, gelu.values()) == 3 * 96  # gradient and input in, gradient out
    assert op_bytes(table.op, table.values()) == 2 * 96 + 6 * 8
    assert [op_kind(given.op) for given in (view, add, table)] == ["view", "memory", "memory"]


def test_a_value_read_twice_is_read_once() -> None:
    x = floats(6, 4)
    given = case("aten.mul.Tensor", x, x)
    once = given.op.map(lambda leaf: type(leaf)("x") if hasattr(leaf, "name") else leaf)
    value = given.values()["operand0"]
    assert op_bytes(once, [value, value]) == 2 * 96


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_flops_of_recurrent_layers_equal_torchs_counter() -> None:
    model, x = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), torch.randn(4, 7, 8)
    program = capture(model, (x,), lambda output, _: output[0].sum())
    ops, values = flat_ops(program)
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        loss = model(x)[0].sum()
        forward = counter.get_total_flops()
        loss.backward()
    assert sum(forward_flops(op, values) for op in ops) == forward
    assert sum(backward_flops(op, values) for op in ops) == counter.get_total_flops() - forward
