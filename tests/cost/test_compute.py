"""Prices of ops: they follow local shapes, dtype and device; nothing is asked of the device for a view."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from small_models import NAMES, small_model

from meshwright.capture import capture
from meshwright.capture.program import Op, Program, Ref, TensorType, Value
from meshwright.cluster import load_cluster
from meshwright.cluster.profile_load import device_of, profile_of, shipped
from meshwright.cost.op.compute import OpSeconds, op_seconds, whole_op_seconds
from meshwright.models.reference import parse_reference
from meshwright.price.step import StepSeconds, step_seconds
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
    assert found.backward_s == pytest.approx(inputs + weights)
    frozen = whole_op_seconds(op, values | {"w": replace(values["w"], grad=False)}, H200)
    assert frozen.backward_s == pytest.approx(inputs)


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
                seconds = op_seconds(op, one, values, mesh.sizes, mesh.device)
                assert seconds.forward_s >= 0
                assert seconds.backward_s >= 0
            same = op_seconds(op, made[0], values, mesh.sizes, mesh.device)  # all axes given to no factor
            assert same == whole


def test_a_share_of_a_large_op_costs_about_its_share() -> None:
    mesh = load_cluster("dgx-h200").mesh((8,))
    op, values = linear(65536, 8192, 8192)
    whole, *shares = (op_seconds(op, one, values, (8,), mesh.device) for one in strategies(op, values, mesh))
    assert shares
    for share in shares:
        assert share.forward_s == pytest.approx(whole.forward_s / 8, rel=0.2)


def test_one_device_and_its_host_overlap() -> None:
    large = step_seconds(program("gpt2?layers=2", 16), H200)
    small = step_seconds(program("gpt?layers=2&hidden=64&heads=2&ffn=64&vocab=64&seq=16", 1), H200)
    assert large.device_s > 2 * large.host_s
    assert large.step_s == pytest.approx(large.device_s, rel=0.01)
    assert small.host_s > 2 * small.device_s
    assert small.step_s == pytest.approx(small.host_s, rel=0.01)


def test_products_of_groups_one_by_one_make_the_host_wait() -> None:
    """In single precision the host reads where groups end: then device and host add up, in bf16 they overlap."""

    def mixture(dtype: torch.dtype) -> StepSeconds:
        model, batch, loss = parse_reference("moe?layers=2&hidden=512&heads=8&ffn=1024&vocab=512&seq=256").meta(12)
        return step_seconds(capture(model.to(dtype), batch, loss), H200)

    waiting, ahead = mixture(torch.float32), mixture(torch.bfloat16)
    assert waiting.step_s > 1.1 * max(waiting.device_s, waiting.host_s)
    assert ahead.step_s == pytest.approx(max(ahead.device_s, ahead.host_s), rel=0.02)


def attention(heads: int, mask: bool) -> OpSeconds:
    query, key, y = value("q", 2, 8, 64, 64), value("k", 2, heads, 64, 64), value("y", 2, 8, 64, 64)
    values = {"q": query, "k": key, "v": replace(key, name="v"), "m": value("m", 1, 8, 64, 64)}
    op = Op("aten.scaled_dot_product_attention.default", tuple(map(Ref, "qkvm" if mask else "qkv")), (), (y,))
    return whole_op_seconds(op, values, H200)


def test_the_host_asks_longer_for_what_no_single_kernel_serves() -> None:
    values = {"x": value("x", 8, 64, 32, 32), "w": value("w", 64, 64, 3, 3), "b": value("b", 64)}
    convolutions = [
        whole_op_seconds(Op("aten.conv2d.default", tuple(map(Ref, names)), (), (values["x"],)), values, H200)
        for names in ("xw", "xwb")
    ]
    assert convolutions[1].forward_host_s > convolutions[0].forward_host_s
    assert convolutions[1].backward_host_s > convolutions[0].backward_host_s
    assert attention(8, mask=True).backward_host_s > attention(8, mask=False).backward_host_s


def test_a_deeper_model_takes_longer_by_its_layers() -> None:
    one, two, three = (step_seconds(program(f"gpt2?layers={n}&vocab=512", 8), H200) for n in (1, 2, 3))
    assert three.device_s - two.device_s == pytest.approx(two.device_s - one.device_s, rel=0.05)
    assert three.host_s - two.host_s == pytest.approx(two.host_s - one.host_s, rel=0.05)


def test_gradients_of_a_value_read_twice_are_summed() -> None:
    class Twice(torch.nn.Module):
        def __init__(self, times: int) -> None:
            super().__init__()
            self.weight, self.times = torch.nn.Parameter(torch.ones(1 << 22)), times

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.weight * 2
            return sum((torch.sin(y) for _ in range(self.times)), x).sum()  # type: ignore[return-value]

    x = torch.zeros(1, 1 << 22)
    once, twice = (step_seconds(capture(Twice(n), {"x": x}), H200) for n in (1, 2))
    sine_and_sum = profile_of(H200).kernel_s("relu.backward", "float32", 2 * 4 << 22)
    more = twice.backward_s - once.backward_s - sine_and_sum
    assert more >= 0.9 * profile_of(H200).kernel_s("add.forward", "float32", 3 * 4 << 22)


def test_a_gradient_that_was_sliced_is_copied_where_it_is_wanted_in_order() -> None:
    """What was concatenated over channels; a sum hands it on, an activation writes a new one."""

    class Halves(torch.nn.Module):
        def __init__(self, dim: int, activation: bool) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Conv2d(8, 8, 1), torch.nn.Conv2d(8, 8, 1)
            self.dim, self.activation = dim, activation

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.second(x) + 1
            return torch.cat([self.first(x), torch.relu(y) if self.activation else y], self.dim).square().sum()

    x = torch.zeros(4, 8, 16, 16)
    along, across, written = (
        step_seconds(capture(Halves(dim, activation), {"x": x}), H200)
        for dim, activation in ((0, False), (1, False), (1, True))
    )
    each_s = profile_of(H200).kernel_s("add.forward", "float32", 2 * 4 * x.numel())
    relu_s = profile_of(H200).kernel_s("relu.backward", "float32", 2 * 4 * x.numel())
    assert across.backward_s - along.backward_s == pytest.approx(2 * each_s)
    assert written.backward_s - along.backward_s == pytest.approx(each_s + relu_s)


def test_fused_adamw_is_faster_than_foreach() -> None:
    found = program("gpt2?layers=2", 1)
    foreach, fused = (step_seconds(found, H200, implementation=name) for name in ("foreach", "fused"))
    assert fused.optimizer_s < foreach.optimizer_s
    assert fused.optimizer_host_s < foreach.optimizer_host_s


@pytest.mark.parametrize(("slow", "fast"), [("V100-SXM2-16GB", "A100-SXM-80GB"), ("A100-SXM-80GB", "H100-SXM-80GB"),
                                            ("H100-SXM-80GB", "B200-SXM")])  # fmt: skip
def test_newer_devices_are_faster(slow: str, fast: str) -> None:
    found = program("gpt2?layers=2", 16)
    assert step_seconds(found, device_of(slow)).device_s > 1.2 * step_seconds(found, device_of(fast)).device_s


def test_a_price_is_quick() -> None:
    """Under 20 us a call on an idle machine; the test allows for one ten times slower."""
    mesh = load_cluster("dgx-h100:8").mesh((8, 8))
    graph = max(program("llama3-8b?layers=2&seq=512", 64).graphs, key=lambda graph: len(graph.ops)).at(64)
    values = graph.values()
    asked = [(op, one) for op in graph.ops for one in strategies(op, values, mesh)]
    start = time.process_time()
    for op, one in asked:
        op_seconds(op, one, values, mesh.sizes, mesh.device)
    assert (time.process_time() - start) / len(asked) < 200e-6
