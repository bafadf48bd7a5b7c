"""A plan that shards and recomputes under a limit runs equal to the plain model, on one rank and on two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from captures import capture
from processes import GlooPool
from small_models import small_model
from test_equality import assert_gradients_close, train_plain, train_planned

from meshwright.capture import Program
from meshwright.cluster import load_cluster
from meshwright.cost.host_link import Copies
from meshwright.plan import Plan
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.plans import with_kept
from meshwright.planner.plan import make_plan
from meshwright.planner.reprice import reprice
from meshwright.predict.simulated import simulate_plan
from meshwright.predict.traffic import collectives_of


def accounted(plan: Plan, program: Program) -> Plan:
    """The plan with its collectives in its prediction."""
    return plan.with_prediction(collectives=collectives_of(plan, program))


def recomputing(size: int, share: float, pins: tuple[str, ...]) -> Plan:
    program, cluster = capture(*small_model("llama")), load_cluster(f"local:{size}")
    free = make_plan(program, cluster, pins=pins)
    limit = int(share * free.predicted.peak_bytes)
    plan = make_plan(program, cluster, pins=pins, memory_bytes=limit)
    assert plan.predicted.peak_bytes <= limit
    assert plan.recomputes, "the limit must make it recompute"
    return plan


def again(size: int, pins: tuple[str, ...]) -> Plan:
    """All that can be is recomputed, collectives included, and the tail runs in chunks."""
    program, cluster = capture(*small_model("llama")), load_cluster(f"local:{size}")
    plan = make_plan(program, cluster, pins=pins)
    options = RematOptions.of(plan, program).curves.options
    least = [min(ways, key=lambda kept: kept.resident_bytes) for ways in options[:-1]]
    found = accounted(with_kept(plan, [*least, max(options[-1], key=lambda kept: kept.chunks)]), program)
    if "tp=2" in pins:
        assert found.choices[found.segments[-1]].chunks > 1
        assert len(found.predicted.collectives) > len(plan.predicted.collectives)
    return found


@pytest.mark.parametrize(
    ("size", "share", "pins"),
    [
        (1, 0.9, ("microbatch=1",)),
        (2, 0.0, ("tp=2", "microbatch=1")),
        pytest.param(2, 0.0, ("dp=2", "microbatch=1"), marks=pytest.mark.full),
        pytest.param(2, 0.9, ("dp=2", "microbatch=1"), marks=pytest.mark.full),
        pytest.param(2, 0.8, ("dp=2", "microbatch=1"), marks=pytest.mark.full),
        pytest.param(2, 0.85, ("tp=2", "microbatch=1"), marks=pytest.mark.full),
    ],
)
def test_loss_gradients_and_collectives_of_a_recomputing_plan(
    size: int, share: float, pins: tuple[str, ...], ranks: Callable[[int], GlooPool]
) -> None:
    assert_runs_equal("llama", recomputing(size, share, pins) if share else again(size, pins), ranks)


QUICK = Copies(1e13, 1e13)
"""A link that hides every copy of a small model."""


@pytest.mark.parametrize(
    ("name", "size", "pins"),
    [
        ("llama", 2, ("dp=2", "zero=3", "microbatch=3", "recompute=sqrt")),
        pytest.param("llama", 2, ("tp=2", "microbatch=1", "recompute=sqrt"), marks=pytest.mark.full),
        pytest.param("llama", 2, ("dp=2", "zero=0", "microbatch=1", "recompute=sqrt"), marks=pytest.mark.full),
        pytest.param("gpt", 3, ("dp=3", "zero=3", "recompute=sqrt"), marks=pytest.mark.full),
        pytest.param("resnet", 2, ("dp=2", "zero=1", "recompute=sqrt"), marks=pytest.mark.full),
    ],
)
def test_segments_that_run_forward_twice_gather_and_communicate_twice(
    name: str, size: int, pins: tuple[str, ...], ranks: Callable[[int], GlooPool]
) -> None:
    program, cluster = capture(*small_model(name)), load_cluster(f"local:{size}")
    plan = make_plan(program, cluster, pins=pins)
    assert any(step.startswith("pass ") for step in plan.order)
    assert reprice(plan, program).predicted == plan.predicted
    once = replace(plan, order=())
    assert len(plan.predicted.collectives) > len(accounted(once, program).predicted.collectives) or "zero=0" in pins
    assert plan.predicted.step_s > reprice(once, program).predicted.step_s
    assert simulate_plan(plan, program).step_s == pytest.approx(plan.predicted.step_s)
    assert_runs_equal(name, plan, ranks)


def test_values_of_sharded_segments_wait_on_the_host(
    ranks: Callable[[int], GlooPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.planner.memory.curves.copies_of", lambda device: QUICK)
    plan = recomputing(2, 0.95, ("tp=2", "microbatch=1"))
    assert any(choice.offload for choice in plan.choices)
    assert reprice(plan, capture(*small_model("llama"))).predicted == plan.predicted
    assert_runs_equal("llama", plan, ranks)


@pytest.mark.full
def test_all_that_can_wait_on_the_host_does_beside_gathers(
    ranks: Callable[[int], GlooPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.planner.memory.curves.copies_of", lambda device: QUICK)
    program, cluster = capture(*small_model("llama")), load_cluster("local:2")
    plan = make_plan(program, cluster, pins=("dp=2", "zero=3", "microbatch=3"))
    found = RematOptions.of(plan, program).curves
    ways = [more[0] if more else kept[0] for kept, more in zip(found.options, found.offload_options, strict=True)]
    away = accounted(with_kept(plan, ways), program)
    assert sum(bool(away.choice(index).offload) for index in range(len(away.segments))) >= 2
    assert_runs_equal("llama", away, ranks)


def assert_runs_equal(name: str, plan: Plan, ranks: Callable[[int], GlooPool]) -> None:
    """Losses and gradients are the plain model's; the collectives are those that were counted."""
    true = train_plain(name, "float32", 1)
    for found in ranks(plan.world_size).run(train_planned, name, plan.to_json(), "float32", 1):
        assert found["losses"] == pytest.approx(true["losses"], rel=1e-6)
        assert_gradients_close(found["gradients"], true["gradients"])
        assert Counter(found["collectives"]) == Counter(plan.predicted.collectives)
