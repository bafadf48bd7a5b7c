"""Nodes of compiled graphs on a GPU: attention by its kind, sums and tables as they run, convolutions channels last."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, fx

from meshwright.capture import Precision, capture
from meshwright.capture.program import Program
from meshwright.cluster.device_table import GPUS
from meshwright.cluster.profile_load import profile_of
from meshwright.cost.traced.kernels import loaded
from meshwright.cost.traced.nodes import BETWEEN_S, NodeCosts
from meshwright.generate.joint import trace
from meshwright.models.reference import parse_reference
from meshwright.planner.one_device import fit_curves
from meshwright.torch_compat import fake_mode, fake_tensor, trace_joint

H200 = GPUS["H200-SXM-141GB"].device
T5 = "t5?layers=3&hidden=128&heads=2&ffn=256&vocab=256&seq=64"


@cache
def program(name: str, batch: int) -> Program:
    return capture(*parse_reference(name).meta(batch), precision="bf16")


def attentions(name: str) -> dict[str, float]:
    costs, found = NodeCosts(H200, fused=True), {}
    for graph in program(name, 8).graphs:
        nodes = trace(graph.at(8), "cpu", "cuda").module.graph.nodes
        attend = [node for node in nodes if "scaled" in str(node.target)]
        found |= {str(node.target): costs.seconds(node) - costs.between_s for node in attend}
    return found


@pytest.mark.parametrize(
    ("name", "variant"), [pytest.param("vit", "plain", marks=pytest.mark.full), ("gpt", "causal"), ("t5", "bias")]
)
def test_attention_is_priced_by_its_kind(name: str, variant: str) -> None:
    sizes = {"vit": "vit?layers=2&hidden=128&heads=2&ffn=256&image=112", "t5": T5}
    found = attentions(sizes.get(name, "gpt?layers=2&hidden=128&heads=2&ffn=256&vocab=256&seq=64"))
    seq = 50 if name == "vit" else 64
    on = profile_of(H200)
    for side in ("forward", "backward"):
        expected = on.attention_s(variant, side, "bfloat16", 2, 16, seq, seq, 64)
        assert any(seconds == pytest.approx(expected) for seconds in found.values()), (side, expected, found)


def extra(function: Callable[..., list[Tensor]], *shapes: tuple[tuple[int, ...], torch.dtype]) -> dict[str, float]:
    mode = fake_mode()
    traced = trace_joint(function, [fake_tensor(shape, dtype, mode) for shape, dtype in shapes], mode)
    costs = NodeCosts(H200, fused=True)
    nodes: list[fx.Node] = [node for node in traced.graph.nodes if node.op == "call_function"]
    return {str(node.target): costs.extra_s(node) for node in nodes}


def test_sums_over_samples_of_what_was_written_take_longer_than_their_bytes() -> None:
    def over(dim: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
        return lambda x, y: [(x @ y).sum(dim)]

    square = ((32, 512, 512), torch.bfloat16)
    first, last = (extra(over(dim), square, square)["aten.sum.dim_IntList"] for dim in (0, 2))
    assert first > 0.5 * 2 * 32 * 512 * 512 / NodeCosts(H200).rate, "half as long again, by the table of sums"
    assert last == 0


def test_rows_added_to_a_small_table_wait_for_each_other() -> None:
    def gradient(rows: int) -> float:
        table = torch.ops.aten.embedding_dense_backward.default
        given = ((1 << 18, 16), torch.bfloat16), ((1 << 18,), torch.int64)
        return extra(lambda g, i: [table(g, i, rows, -1, False)], *given)["aten.embedding_dense_backward.default"]

    assert gradient(32) > 100 * gradient(1 << 18)


def test_convolutions_lie_channels_last_and_turn_their_weights() -> None:
    mode = fake_mode()
    shapes = [(32, 256, 28, 28), (512, 256, 3, 3), (512, 512, 1, 1)]
    fakes = [fake_tensor(shape, torch.bfloat16, mode) for shape in shapes]
    conv = torch.ops.aten.convolution.default

    def call(x: Tensor, w: Tensor, p: Tensor) -> list[Tensor]:
        plain = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return [conv(conv(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), p, None, *plain)]

    nodes = [node for node in trace_joint(call, fakes, mode).graph.nodes if "convolution" in str(node.target)]
    compiled, eager = NodeCosts(H200, fused=True), NodeCosts(H200)
    assert compiled.seconds(nodes[0]) < eager.seconds(nodes[0])
    weight = 512 * 256 * 9 * 2
    assert [compiled.working_bytes(node) for node in nodes] == [weight, 0]
    assert [eager.working_bytes(node) for node in nodes] == [0, 0]


def test_what_an_encoder_hands_to_every_decoder_layer_is_held_once() -> None:
    found = program(T5, 8)
    options = fit_curves(found, H200, precision="bf16", compile=True).options
    kept = [ways[0].resident_bytes for ways in options]
    readers = [i for i, s in enumerate(found.segments) if len(s.inputs) == 3]
    first, *others = (kept[index] for index in readers)
    encoded = 8 * 64 * 128 * 2
    assert len(others) == 2
    assert set(others) == {first - encoded - 2 * 64 * 64 * 2}, "nor the bias that all of them add"


@pytest.mark.parametrize(
    ("precision", "width", "expected", "never"),
    [
        ("fp32", 32, "softmax", "attention"),
        ("bf16", 32, "cudnn_attention", "softmax"),
        pytest.param("bf16", 36, "flash", "cpu", marks=pytest.mark.full),
    ],
)
def test_attention_of_grouped_heads_is_traced_as_a_gpu_runs_it(
    precision: Precision, width: int, expected: str, never: str
) -> None:
    """Also where no GPU is here: in single precision no fused kernel takes grouped heads; the one for whole 8 columns
    takes copies of those that are not."""
    name = f"llama?layers=1&hidden={4 * width}&heads=4&kv_heads=2&ffn=64&vocab=64&seq=16"
    graph = capture(*parse_reference(name).meta(2), precision=precision).graphs[1]
    nodes = trace(graph.at(2), "cpu", "cuda").module.graph.nodes
    found = {str(node.target) for node in nodes if node.op == "call_function"}
    assert any(expected in target for target in found)
    assert not any(never in target for target in found)
    assert ("aten.constant_pad_nd.default" in found) == (width == 36)


def test_products_take_longer_the_more_of_the_time_they_fill() -> None:
    graph = program("gpt?layers=2&hidden=256&heads=2&ffn=1024&vocab=256&seq=64", 64).graphs[1].at(64)
    module, costs = trace(graph, "cpu", "cuda").module, NodeCosts(H200, fused=True)
    products = [node for node in module.graph.nodes if str(node.target).startswith("aten.mm")]
    flops = sum(2 * 64 * 64 * 256 * n for n in (256,) * 4 + (1024,) * 2)
    assert costs.under_load([], 1.0) is costs
    idle, busy = costs.under_load(products, 1.0), costs.under_load(products, 1e-9)
    (_, *least), *_, (_, *most) = profile_of(H200).tables.steady["bfloat16"]
    assert (idle.steady, busy.steady) == (tuple(least), tuple(most))
    alone_s, busy_s = (each.seconds(products[0]) - BETWEEN_S for each in (costs, busy))
    assert busy_s / alone_s == pytest.approx(most[0])
    assert costs.rate / busy.rate == pytest.approx(most[1])
    at_reached = flops / profile_of(H200).tables.reached["bfloat16"]
    forward = [node for node in module.graph.nodes if "addmm" in str(node.target)]
    assert costs.under_load(forward, at_reached).steady == pytest.approx(most)
    assert loaded(module, costs).steady[0] < most[0], "other kernels take time as well"


def test_an_activation_that_computes_takes_longer_than_its_bytes() -> None:
    given = ((1 << 12, 1 << 12), torch.bfloat16)
    (gelu,) = extra(lambda x: [torch.nn.functional.gelu(x)], given).values()
    (relu,) = extra(lambda x: [torch.relu(x)], given).values()
    assert relu == 0
    assert gelu == pytest.approx(0.58 * 2 * 2 * (1 << 24) / NodeCosts(H200).rate)
