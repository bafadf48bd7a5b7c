"""Optima that can be worked out by hand: communication alone counts, AR(B) = 1 + 2 (n-1)/n B seconds."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest
import torch
import torch.nn.functional as F
from small_models import small_model
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.cluster import Cluster, Device
from meshwright.cluster.contention import OVER_OTHERS
from meshwright.cluster.tree import Group, Link, Member
from meshwright.layout import Collective
from meshwright.models.bert import Block
from meshwright.models.moe import Experts
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan

FAST = Device("fast", "cuda", (("float32", 1e30),), 1 << 50, 1e30, 0.0)
SPLIT = ("mesh=4", "split=matmul", "zero=0")


def wire(n: int) -> Cluster:
    """n devices on links of one byte per second that start in a second."""
    host = Group("host", Link(0.0, 1.0), (Member("fast", n),))
    return Cluster("wire", "nccl", (FAST,), host, overhead_s=1.0)


class MLP(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.down(F.relu(self.up(x))), y)


class Encoder(nn.Module):
    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(hidden, 8, 4 * hidden, 0.0) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(x, y)


def planned(model: nn.Module, shape: tuple[int, ...], pins: tuple[str, ...]) -> Plan:
    batch = {"x": torch.zeros(shape), "y": torch.zeros(shape)}
    return make_plan(capture(model, batch), wire(4), pins=(*pins, "microbatch=1"))


def all_reduce_s(n_bytes: int, n: int = 4) -> float:
    return 1 + 2 * (n - 1) / n * n_bytes


def test_a_large_batch_is_split_over_samples() -> None:
    plan = planned(MLP(128), (1024, 128), SPLIT)
    loss = Collective("all_reduce", "dp", 4)
    weight = Collective("all_reduce", "dp", 128 * 128 * 4)
    assert Counter(plan.predicted.collectives) == {weight: 2, loss: 1}, "each leaves as it is made"
    slowed = 2 * OVER_OTHERS / 2  # backward is what both slow it by; the first leaves when half of it is over
    expected = (2 + slowed) * all_reduce_s(128 * 128 * 4) + all_reduce_s(4)
    assert plan.predicted.step_s == pytest.approx(expected, rel=1e-4)


def test_large_weights_are_split_by_columns_then_rows() -> None:
    plan = planned(MLP(1024), (128, 1024), SPLIT)
    assert plan.predicted.collectives == (Collective("all_reduce", "tp", 128 * 1024 * 4),)
    assert plan.predicted.step_s == pytest.approx(all_reduce_s(128 * 1024 * 4), rel=1e-4)


@pytest.mark.parametrize("hidden", [128, 1024])
def test_where_nothing_must_be_split_nothing_is_sent(hidden: int) -> None:
    assert planned(MLP(hidden), (128, hidden), ("mesh=4", "zero=0")).predicted.collectives == ()


def test_a_transformer_layer_takes_two_all_reduces_each_way_less_the_first() -> None:
    layers = 2
    plan = planned(Encoder(layers, 128), (8, 8, 128), SPLIT)
    assert plan.predicted.collectives == (Collective("all_reduce", "tp", 8 * 8 * 128 * 4),) * (4 * layers - 1)


class RematChain(nn.Module):
    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.first = nn.Linear(hidden, hidden, bias=False)
        self.experts = Experts(hidden, 4 * hidden, experts, 2, False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x)
        return F.mse_loss(x + self.experts(x)[0], y)


def test_experts_are_split_and_tokens_sent_to_them_and_back() -> None:
    """Two all-to-alls each way, of a device's tokens twice over, since each goes to two experts."""
    plan = planned(RematChain(64, 16), (64, 16, 64), SPLIT)
    assert plan.mesh.names == ("ep",)
    assert plan.parameters["experts.up"].compute == plan.parameters["experts.down"].compute == "[S(0)]"
    sent = [item for item in plan.predicted.collectives if item.kind == "all_to_all"]
    assert sent == [Collective("all_to_all", "ep", 2 * 64 * 16 * 64 * 4 // 4)] * 4


def moved(plan: Plan, n: int) -> float:
    """Bytes one rank sends for its weights: a ring passes (n-1)/n of a tensor, an all-reduce twice. Scalars aside."""
    times = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    return sum(times[c.kind] * (n - 1) / n * c.bytes for c in plan.predicted.collectives if c.bytes > 16)


def test_zero_1_and_2_move_what_ddp_moves_and_zero_3_half_as_much_again() -> None:
    """But for the last segment, whose backward finds what its forward has just gathered, and the first, an embedding,
    whose backward does not read it."""
    model, batch = small_model("llama")
    program = capture(model, batch).at_batch(12)
    volumes = [
        moved(make_plan(program, wire(4), pins=("mesh=4", "dp=4", f"zero={stage}", "microbatch=1")), 4)
        for stage in range(4)
    ]
    ends = (name for k in (0, -1) for name in program.segments[k].params)
    once = sum(4 * prod(program.parameter(name).type.sizes) for name in ends)
    assert volumes == pytest.approx([volumes[0], volumes[0], volumes[0], 1.5 * volumes[0] - 3 / 4 * once])
