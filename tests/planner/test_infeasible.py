"""What a refusal is told by and names: state that no devices hold, a cluster that the pins can be had on."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.pins.parts import pinned_devices
from meshwright.planner import one_stage, plan
from meshwright.planner.effort import FEW
from meshwright.planner.infeasible.estimate import larger_cluster, training_state_bytes
from meshwright.planner.infeasible.min_memory import MemoryNeeded
from meshwright.planner.infeasible.refusals import TO_HOST, refuse_method, refuse_one_stage
from meshwright.planner.plan import make_plan
from meshwright.planner.space.candidates import tight_candidates
from meshwright.price.parameter import Setting


def test_a_cluster_without_bound_is_refused_with_the_bound() -> None:
    program = capture(*small_model("narrow"))
    with pytest.raises(PlanError, match="65,544 devices\n  expected: at most 65,536"):
        make_plan(program, load_cluster("dgx-h100:8193"))


@pytest.mark.parametrize(
    ("count", "pins", "named"),
    [
        (2, ("dp=2",), "use local:4 (4 devices do)"),
        (4, ("tp=4",), "use local:8 (8 devices do)"),
        (2, ("mesh=2",), ""),
        (2, ("dp=2", "tp=1"), ""),
    ],
)
def test_a_cluster_that_is_named_can_have_the_pins(count: int, pins: tuple[str, ...], named: str) -> None:
    program, cluster = capture(*small_model("llama")), load_cluster(f"local:{count}")
    free = make_plan(program, cluster, pins=pins).predicted
    budget = free.static_bytes * 6 // 5  # less than with gradients, which are a third more
    tight = partial(tight_candidates, program, pins=pins, setting=Setting())
    larger = larger_cluster(cluster, budget, tight, pinned_devices(pins), 0)
    todo = refuse_one_stage(cluster, budget, MemoryNeeded(1, "kept", 1), larger).todo
    assert todo.startswith(named or "raise the memory limit")


def test_what_headroom_leaves_free_is_named_and_can_be_taken() -> None:
    text = str(refuse_one_stage(load_cluster("h100:2"), 2378, MemoryNeeded(1 << 30, "kept", 1), None, 0.9999999))
    assert "(H100-SXM-80GB, 99.99999% left free)" in text
    assert "leave none free (--headroom 0" in text
    assert "raise the memory limit" not in text


def test_a_pinned_method_may_go_to_the_host() -> None:
    needed = MemoryNeeded(1 << 30, "kept", 1)
    assert TO_HOST in refuse_method("full", 2378, needed, may_offload=True).todo
    assert TO_HOST not in refuse_method("full", 2378, needed).todo


class Deep(torch.nn.Module):
    """More segments than are refused to the byte."""

    def __init__(self, layers: int = 24) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x.square().mean()


def test_state_that_no_devices_hold_is_refused_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    program, cluster = capture(Deep(), {"x": torch.zeros(8, 16)}), load_cluster("local:2")
    assert len(program.segments) > FEW
    needed = training_state_bytes(program, Setting())
    pins = ("pp=1", "mesh=2", "microbatch=1")
    sharded = make_plan(program, cluster, pins=(*pins, "zero=3"))
    assert needed == 24 * (16 * 16 + 16) * 4 * 4
    assert needed * 3 // 4 == 2 * sharded.predicted.static_bytes  # gradients come in backward, and all wait at its end
    assert needed <= 2 * sharded.predicted.peak_bytes
    assert training_state_bytes(program, Setting(offload="optimizer")) == needed // 2
    assert training_state_bytes(program, Setting(offload="weight")) == 0
    monkeypatch.setattr(plan, "_search", None)  # to call it is an error
    monkeypatch.setattr(one_stage, "minimum_budget", lambda parts, refused, known, *rest: known)
    with pytest.raises(PlanError, match="no plan fits"):
        make_plan(program, cluster, memory_bytes=needed // 2 - 1, pins=pins)


def test_a_refusal_asks_what_takes_long_of_small_programs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many layers as gpt2 has: what is named is still a budget that does."""
    program, cluster = capture(Deep(12), {"x": torch.zeros(8, 16)}), load_cluster("local:2")
    assert FEW < len(program.segments) <= 14
    slow = ("feasible_jointly", "feasible_by_budgets", "charged")
    with monkeypatch.context() as patched:
        for name in slow:
            patched.setattr(one_stage, name, lambda *_, **__: lambda *_, **__: pytest.fail("asked"))
        patched.setattr(
            "meshwright.planner.chain.lagrangian._min_memory_chain", lambda *_: pytest.fail("solved to the byte")
        )
        patched.setattr(plan, "_search", None)  # to call it is an error
        with pytest.raises(PlanError, match=r"are enough, [\d,]+ more: ") as refused:
            make_plan(program, cluster, memory_bytes=4096)
    assert refused.value.expected.endswith("; less may be enough")
    least = int(refused.value.expected.split()[0].replace(",", ""))
    assert make_plan(program, cluster, memory_bytes=least).predicted.peak_bytes <= least
