"""Only the cost package reads a device's price tables; traced pairs are priced by the same figures as Program ops."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import meshwright
from meshwright.capture.program import Op, Ref, TensorType, Value
from meshwright.cluster.profile_load import device_of, profile_of
from meshwright.cost.op.compute import whole_op_seconds
from meshwright.cost.traced.host import graph_host_s
from meshwright.cost.traced.kernels import graph_seconds
from meshwright.cost.traced.nodes import BETWEEN_S, NodeCosts
from meshwright.torch_compat import fake_mode, fake_tensor, trace_joint

ROOT = Path(meshwright.__file__).parent
TABLES = {
    *("kernel_s", "rows_s", "matmul_s", "attention_s", "convolution_s", "channels_last_s"),
    *("grouped", "steady", "mixture_s", "update_s"),
}
"""Methods of `DeviceProfile` that give the price of a kernel."""
H200 = device_of("H200-SXM-141GB")


def files(words: set[str]) -> Iterator[Path]:
    """Files outside of `cost` and `cluster` that hold one of these words."""
    either = re.compile(rf"\b({'|'.join(words)})\b")
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] not in ("cost", "cluster") and either.search(path.read_text("utf-8")):
            yield path


def called(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute)}


def test_only_the_cost_package_calls_the_price_tables() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} calls {sorted(called(path) & TABLES)}"
        for path in files(TABLES)
        if called(path) & TABLES
    ]
    assert not wrong


def test_no_other_package_asks_for_a_profile() -> None:
    """Neither of kernels, nor of the host's calls, of optimizers or of the link to the host."""
    asks = {"profile_of", "read_profile", "DeviceProfile"}
    wrong = []
    for path in files(asks):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {name.name for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
        if names & asks:
            wrong.append(f"{path.relative_to(ROOT)} imports {sorted(names & asks)}")
    assert not wrong


@cache
def joint(name: str) -> torch.fx.GraphModule:
    mode = fake_mode()

    def fake(*shape: int) -> Tensor:
        return fake_tensor(shape, torch.bfloat16, mode)

    aten = torch.ops.aten
    if name == "linear":  # as autograd runs it: forward, and the two gradients
        return trace_joint(
            lambda x, w, g: [aten.mm(x, aten.t(w)), aten.mm(g, w), aten.mm(aten.t(g), x)],
            [fake(4096, 1024), fake(3072, 1024), fake(4096, 3072)],
            mode,
        )
    if name == "gelu":
        shape = (8192, 4096)
        return trace_joint(lambda x, g: [aten.gelu(x), aten.gelu_backward(g, x)], [fake(*shape), fake(*shape)], mode)
    shape = (8192, 1024)
    return trace_joint(lambda x: [aten._softmax(x, -1, False)], [fake(*shape)], mode)


def value(name: str, *shape: int) -> Value:
    return Value(name, TensorType(shape, "bfloat16"), True)


@pytest.mark.parametrize("name", ["linear", "gelu", "softmax"])
def test_a_traced_pair_costs_what_its_op_does(name: str) -> None:
    """The same figures, one kernel after the other; what lies between two kernels is a step's, not an op's."""
    module, costs = joint(name), NodeCosts(H200)
    kernels = [node for node in module.graph.nodes if costs.seconds(node)]
    if name == "linear":
        values = {"x": value("x", 4096, 1024), "w": value("w", 3072, 1024)}
        op = Op("aten.linear.default", (Ref("x"), Ref("w")), (), (value("y", 4096, 3072),))
    else:
        shape = (8192, 4096) if name == "gelu" else (8192, 1024)
        values = {"x": value("x", *shape)}
        op = Op(f"aten.{name}.{'default' if name == 'gelu' else 'int'}", (Ref("x"), -1)[: 1 + (name != "gelu")], (),
                (value("y", *shape),))  # fmt: skip
    found = whole_op_seconds(op, values, H200)
    expected = found.forward_s + (0.0 if name == "softmax" else found.backward_s)
    assert graph_seconds(module, costs) == pytest.approx(expected + len(kernels) * BETWEEN_S)


def test_repeated_operands_and_other_orders_take_longer() -> None:
    mode = fake_mode()
    big, row = fake_tensor((64, 256, 1024), torch.bfloat16, mode), fake_tensor((64, 1, 1024), torch.bfloat16, mode)

    def seconds(function: object) -> float:
        module = trace_joint(function, [big, row], mode)  # type: ignore[arg-type]
        return graph_seconds(module, NodeCosts(H200))

    plain = seconds(lambda x, r: [x * x])
    assert seconds(lambda x, r: [x * r]) > 1.5 * plain
    assert seconds(lambda x, r: [x.transpose(1, 2).clone(memory_format=torch.contiguous_format)]) > 1.5 * plain


def test_the_host_pays_for_every_call_and_for_no_view_twice() -> None:
    mode = fake_mode()
    x = fake_tensor((64, 64), torch.bfloat16, mode)
    costs, on = NodeCosts(H200), profile_of(H200)

    def host_s(function: object) -> float:
        return graph_host_s(trace_joint(function, [x], mode), costs)  # type: ignore[arg-type]

    none = host_s(lambda x: [x])
    assert host_s(lambda x: [torch.relu(x)]) - none == pytest.approx(on.host("relu", pair=True)[0])
    assert host_s(lambda x: [x.t().detach()]) == host_s(lambda x: [x.t()])
    cpu = NodeCosts(device_of("cpu"))
    assert graph_host_s(trace_joint(lambda x: [torch.relu(x)], [x], mode), cpu) == 0
