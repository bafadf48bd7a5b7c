"""An optimizer whose state is on the host: what its copies add to a step, and hold, against closed forms."""

from __future__ import annotations

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.plan.instruction import from_text
from meshwright.planner.plan import make_plan
from meshwright.predict.pieces import stage_pieces
from meshwright.predict.simulated import simulate_plan
from meshwright.schedule.one_stage import one_stage
from meshwright.simulate import Costs, SegmentCost, simulate

GROUPS = 4
BEFORE = 2.0 * GROUPS
"""Seconds of forward and backward."""


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(*small_model("gpt"))


def step_s(update_s: float, fetch_s: float, put_s: float, resident_s: float = 0.0) -> tuple[float, int]:
    costs = [
        SegmentCost(1.0, 1.0, 0.0, step_s=resident_s / GROUPS, hosted_step_s=update_s, fetch_state_s=fetch_s,
                    put_state_s=put_s, state_bytes=10, static_bytes=100)
        for _ in range(GROUPS)
    ]  # fmt: skip
    lists = one_stage(GROUPS, frozenset(), frozenset())
    timeline = simulate((lists,), Costs(costs, overlap=True))
    return timeline.step_s - BEFORE, timeline.peak_bytes - 100 * GROUPS


def test_the_slowest_of_copies_and_updates_hides_the_others() -> None:
    assert step_s(3.0, 2.0, 1.0)[0] == pytest.approx(2.0 + GROUPS * 3.0 + 1.0), "updates"
    assert step_s(1.0, 3.0, 2.0)[0] == pytest.approx(GROUPS * 3.0 + 1.0 + 2.0), "copies to the device"
    assert step_s(1.0, 1.0, 3.0)[0] == pytest.approx(1.0 + 1.0 + GROUPS * 3.0), "copies back"
    assert step_s(1.0, 3.0, 2.0, resident_s=2.5)[0] == pytest.approx(GROUPS * 3.0 + 1.0 + 2.0), "others go first"
    assert step_s(0.0, 0.0, 0.0, resident_s=2.5)[0] == pytest.approx(2.5)


def test_three_groups_are_on_the_device_at_most() -> None:
    assert step_s(1.0, 3.0, 2.0)[1] == 30
    assert step_s(3.0, 1.0, 4.0)[1] == 30


def test_weights_and_activations_share_the_way_from_the_host() -> None:
    """A gather's copy waits for the lane that brings activations back, and they for it."""
    lines = (
        *("gather 0", "forward 0 mb0", "offload 0 mb0", "forward 1 mb0", "release 0 mb0", "fetch 0 mb0", "gather 0"),
        *("backward 1 mb0", "backward 0 mb0", "reduce 0", "reduce 1", "step"),
    )
    lists = from_text("\n".join(lines))
    own = SegmentCost(1.0, 1.0, 0.0, offloaded_bytes=8, away_s=1.0, gather_params_s=8.0, link_s=8.0, overlappable_s=8.0)
    timeline = simulate((lists,), Costs([own, SegmentCost(1.0, 1.0, 0.0)], overlap=True))
    # 4 s of copying, forward, forward beside the offload; then fetch 1 s, the gather's 4 s after it, backward.
    assert timeline.step_s == pytest.approx(4 + 1 + 1 + 1 + 4 + 1)


@pytest.mark.parametrize("pins", [("offload=optimizer",), ("offload=weights:0.5",), ("offload=weights", "zero=3")])
@pytest.mark.parametrize("cluster", ["h200:2", "local:2"])
def test_the_search_price_is_near_the_simulated_one(program: Program, cluster: str, pins: tuple[str, ...]) -> None:
    """A search takes the slowest of updates and copies; beside it there are the first copy and the last."""
    plan = make_plan(program, load_cluster(cluster), pins=("dp=2", *pins))
    assert simulate_plan(plan, program).step_s == pytest.approx(plan.predicted.step_s, rel=1e-9)
    hosted = [piece.hosted for piece in stage_pieces(plan, program, 0) if piece.hosted is not None]
    most_s = sum(one.update_s + one.fetch_s + one.put_s for one in hosted)
    least_s = max(sum(one.update_s for one in hosted), sum(one.fetch_s for one in hosted))
    assert least_s <= plan.predicted.optimizer_s + 1e-12 <= plan.predicted.step_s
    assert plan.predicted.optimizer_s <= most_s + sum(piece.point.step_s for piece in stage_pieces(plan, program, 0))
