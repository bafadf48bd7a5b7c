"""Prices of ops: they follow local shapes, dtype and device; nothing is asked of the device for a view."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from small_models import NAMES, small_model

from meshwright.capture import capture
from meshwright.capture.program import Op, Program, Ref, TensorType, Value
from meshwright.cluster import load_cluster
from meshwright.cluster.profile_load import device_of, profile_of, shipped
from meshwright.cost.op.compute import op_seconds, whole_op_seconds
from meshwright.models.reference import parse_reference
from meshwright.rules import strategies

H200 = device_of("H200-SXM-141GB")


def value(name: str, *shape: int, dtype: str = "bfloat16", grad: bool = True) -> Value:
    return Value(name, TensorType(shape, dtype), grad)


def linear(m: int, k: int, n: int, dtype: str = "bfloat16") -> tuple[Op, dict[str, Value]]:
    x, w, y = value("x", m, k, dtype=dtype), value("w", n, k, dtype=dtype), value("y", m, n, dtype=dtype)
    return Op("aten.linear.default", (Ref("x"), Ref("w")), (), (y,)), {"x": x, "w": w}


def program(reference: str, batch: int) -> Program:
    return capture(*parse_reference(reference).meta(batch))


def test_a_linear_layer_is_three_products() -> None:
    op, values = linear(4096, 1024, 3072)
    found, on = whole_op_seconds(op, values, H200), profile_of(H200)
    assert found.forward_s == on.matmul_s("nt", "bfloat16", 2, 4096, 3072, 1024)
    inputs, weights = (
        on.matmul_s("nn", "bfloat16", 2, 4096, 1024, 3072),
        on.matmul_s("tn", "bfloat16", 2, 3072, 1024, 4096),
    )
    assert (found.input_s, found.weight_s) == (inputs, weights)
    frozen = whole_op_seconds(op, values | {"w": replace(values["w"], grad=False)}, H200)
    assert frozen.backward_s == pytest.approx(inputs)


def test_attention_has_no_half_for_weights_and_an_embedding_none_for_inputs() -> None:
    query, y = value("q", 2, 8, 64, 64), value("y", 2, 8, 64, 64)
    attend = Op("aten.scaled_dot_product_attention.default", tuple(map(Ref, "qqq")), (), (y,))
    found = whole_op_seconds(attend, {"q": query}, H200)
    assert found.input_s > found.weight_s == 0
    values = {"w": value("w", 512, 64), "i": value("i", 8, 128, dtype="int64", grad=False)}
    look = Op("aten.embedding.default", (Ref("w"), Ref("i")), (), (value("y", 8, 128, 64),))
    found = whole_op_seconds(look, values, H200)
    assert found.weight_s > found.input_s == 0


def test_products_of_a_long_step_are_as_slow_on_several_devices_as_on_one() -> None:
    """A B200 keeps 0.64 of its speed; one that plans for a single device counts that kernel by kernel."""
    mesh = load_cluster("b200:2").mesh((2,))
    op, values = linear(4096, 1024, 3072)
    alone = whole_op_seconds(op, values, mesh.device)
    each = [op_seconds(op, made, values, mesh.device) for made in strategies(op, values, mesh)]
    within = max(each, key=lambda found: found.forward_s)  # every device does all of it
    assert within.forward_s == pytest.approx(alone.forward_s / 0.64)
    assert within.backward_s == pytest.approx(alone.backward_s / 0.64)
    assert within.forward_host_s == alone.forward_host_s


def test_without_a_gradient_there_is_no_backward() -> None:
    op, values = linear(64, 64, 64)
    plain = replace(op, results=(replace(op.results[0], grad=False),))
    found = whole_op_seconds(plain, values, H200)
    assert (found.backward_s, found.backward_host_s) == (0.0, 0.0)
    assert found.forward_s > 0


@pytest.mark.parametrize("name", shipped())
def test_an_unknown_op_is_priced_by_its_bytes(name: str) -> None:
    values = {"x": value("x", 1 << 25, dtype="float32")}
    op = Op("aten.some_new_op.default", (Ref("x"),), (), (value("y", 1 << 25, dtype="float32"),))
    device = device_of(name)
    found = whole_op_seconds(op, values, device)
    nominal_s = 2 * 4 * (1 << 25) / device.memory_bandwidth
    assert 0.1 * nominal_s < found.forward_s < 10 * nominal_s
    assert found.backward_s > 0


def convolution(channels: int, out: int, groups: int = 1, size: int = 56) -> tuple[Op, dict[str, Value]]:
    x, y = value("x", 32, channels, size, size), value("y", 32, out, size, size)
    weight = value("w", out, channels // groups, 3, 3)
    return Op("aten.conv2d.default", (Ref("x"), Ref("w"), None, (1, 1), (1, 1), (1, 1), groups), (), (y,)), {
        "x": x,
        "w": weight,
    }


def test_a_convolution_costs_forward_and_the_two_gradients_that_are_asked_for() -> None:
    op, values = convolution(128, 128)
    found, on = whole_op_seconds(op, values, H200), profile_of(H200)
    sizes = (32, 56 * 56, 128, 128, 9, 56 * 56, 1)
    sides = [on.convolution_s(side, "bfloat16", 2, sizes) for side in ("forward", "input", "weight")]
    assert found.forward_s == sides[0]
    assert found.backward_s == pytest.approx(sides[1] + sides[2])
    frozen = whole_op_seconds(op, values | {"w": replace(values["w"], grad=False)}, H200)
    assert frozen.backward_s == pytest.approx(sides[1])


def test_a_depthwise_convolution_is_bound_by_its_bytes() -> None:
    dense, depthwise = (whole_op_seconds(*convolution(256, 256, groups), H200) for groups in (1, 256))
    twice = whole_op_seconds(*convolution(512, 512, 512), H200)
    assert depthwise.forward_s != dense.forward_s
    assert twice.forward_s == pytest.approx(2 * depthwise.forward_s, rel=0.15)


def test_a_view_costs_the_host_alone() -> None:
    values = {"x": value("x", 8, 1024, 768)}
    op = Op("aten.view.default", (Ref("x"), (8, 1024, 12, 64)), (), (value("y", 8, 1024, 12, 64),))
    found = whole_op_seconds(op, values, H200)
    assert (found.forward_s, found.backward_s) == (0.0, 0.0)
    assert 0 < found.forward_host_s < 5e-5


def test_a_cpu_has_no_host_beside_it() -> None:
    op, values = linear(64, 64, 64, "float32")
    found = whole_op_seconds(op, values, device_of("cpu"))
    assert (found.forward_host_s, found.backward_host_s) == (0.0, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_every_op_of_every_family_has_a_price_on_every_strategy(name: str) -> None:
    model, batch = small_model(name)
    found = capture(model, batch)
    mesh = load_cluster("dgx-h200").mesh((2, 4))
    for graph in found.graphs:
        fixed = graph.at(found.batch)
        values = fixed.values()
        for op in fixed.ops:
            made = strategies(op, values, mesh)
            whole = whole_op_seconds(op, values, mesh.device)
            for one in made:
                seconds = op_seconds(op, one, values, mesh.device)
                assert seconds.forward_s >= 0
                assert seconds.backward_s >= 0
            same = op_seconds(op, made[0], values, mesh.device)  # all axes given to no factor
            assert same == whole


def test_a_share_of_a_large_op_costs_about_its_share() -> None:
    mesh = load_cluster("dgx-h200").mesh((8,))
    op, values = linear(65536, 8192, 8192)
    whole, *shares = (op_seconds(op, one, values, mesh.device) for one in strategies(op, values, mesh))
    assert shares
    for share in shares:
        assert share.forward_s == pytest.approx(whole.forward_s / 8, rel=0.2)


@pytest.mark.parametrize(("slow", "fast"), [("V100-SXM2-16GB", "A100-SXM-80GB"), ("A100-SXM-80GB", "H100-SXM-80GB"),
                                            ("H100-SXM-80GB", "B200-SXM")])  # fmt: skip
def test_newer_devices_are_faster(slow: str, fast: str) -> None:
    late, early = (whole_op_seconds(*linear(8192, 4096, 4096), device_of(name)) for name in (slow, fast))
    assert late.forward_s + late.backward_s > 1.2 * (early.forward_s + early.backward_s)


def test_a_price_is_quick() -> None:
    """Under 20 us a call on an idle machine; the test allows for one ten times slower."""
    mesh = load_cluster("dgx-h100:8").mesh((8, 8))
    graph = max(program("llama3-8b?layers=2&seq=512", 64).graphs, key=lambda graph: len(graph.ops)).at(64)
    values = graph.values()
    asked = [(op, one) for op in graph.ops for one in strategies(op, values, mesh)]
    start = time.process_time()
    for op, one in asked:
        op_seconds(op, one, values, mesh.device)
    assert (time.process_time() - start) / len(asked) < 200e-6
