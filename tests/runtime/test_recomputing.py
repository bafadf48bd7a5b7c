"""A plan that shards and recomputes under a limit runs equal to the plain model, on one rank and on two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from processes import GlooPool
from small_models import small_model
from test_equality import assert_gradients_close, train_plain, train_planned

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.plan import Plan
from meshwright.solve.account import accounted
from meshwright.solve.memory.plan import with_kept
from meshwright.solve.plan import make_plan
from meshwright.solve.points import Ways


def recomputing(size: int, share: float, pins: tuple[str, ...]) -> Plan:
    program, cluster = capture(*small_model("llama")), load_cluster(f"local:{size}")
    free = make_plan(program, cluster, pins=pins)
    limit = int(share * free.predicted.peak_bytes)
    plan = make_plan(program, cluster, pins=pins, memory_bytes=limit)
    assert plan.predicted.peak_bytes <= limit
    assert any(choice.recompute for choice in plan.choices), "the limit must make it recompute"
    return plan


def again(size: int, pins: tuple[str, ...]) -> Plan:
    """All that can be is made again, collectives included, and the tail runs in chunks."""
    program, cluster = capture(*small_model("llama")), load_cluster(f"local:{size}")
    plan = make_plan(program, cluster, pins=pins)
    options = Ways.of(plan, program).curves.options
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
        pytest.param(2, 0.7, ("dp=2", "microbatch=1"), marks=pytest.mark.full),
        pytest.param(2, 0.85, ("tp=2", "microbatch=1"), marks=pytest.mark.full),
    ],
)
def test_loss_gradients_and_collectives_of_a_recomputing_plan(
    size: int, share: float, pins: tuple[str, ...], ranks: Callable[[int], GlooPool]
) -> None:
    plan = recomputing(size, share, pins) if share else again(size, pins)
    true = train_plain("llama", "float32", 1)
    for found in ranks(size).run(train_planned, "llama", plan.to_json(), "float32", 1):
        assert found["losses"] == pytest.approx(true["losses"], rel=1e-6)
        assert_gradients_close(found["gradients"], true["gradients"])
        assert Counter(found["collectives"]) == Counter(plan.predicted.collectives)
