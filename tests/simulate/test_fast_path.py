"""What a search compares (`price.overlap`) takes what the simulator takes for the same segments, in one list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.plan import Choice, FrontierPoint
from meshwright.price.overlap import overlapped
from meshwright.price.parameter import chain_uses
from meshwright.schedule import one_stage
from meshwright.simulate import Costs, SegmentCost, simulate

SECONDS = st.sampled_from((0.0, 0.1, 0.3, 1.0, 1.7, 4.0)) | st.floats(0, 5)
SHARE = st.sampled_from((0.0, 1.0)) | st.floats(0, 1)


@st.composite
def points(draw: st.DrawFn) -> FrontierPoint:
    """Any segment: gathered never, once or at each use; reduced once or after each micro-batch, whole or in part."""
    forward_s, backward_s, gather_params_s, reduce_grads_s = (draw(SECONDS) for _ in range(4))
    again, carried = draw(st.booleans()), draw(SHARE)
    overlappable_s = draw(SHARE) * (gather_params_s + reduce_grads_s)
    return FrontierPoint(
        Choice(0, (), (), {}),
        forward_s,
        backward_s * 0.25,
        backward_s * 0.75,
        gather_params_s,
        reduce_grads_s,
        draw(SECONDS),
        overlappable_s,
        *(0,) * 4,
        gather_per_use_s=gather_params_s if again else 0.0,
        reduce_per_microbatch_s=draw(SHARE) * reduce_grads_s,
        forward_host_s=draw(SHARE) * 3,
        backward_host_s=draw(SHARE) * 3,
        step_host_s=draw(SHARE),
        forward_wire_s=draw(SHARE) * forward_s,
        backward_wire_s=draw(SHARE) * backward_s,
        lookup=draw(st.booleans()),
        grad_buckets=draw(st.integers(1, 4)),
        core_driven_comm_s=carried * overlappable_s,
    )


def simulated(rows: list[FrontierPoint], microbatches: int) -> float:
    gathered = frozenset(i for i, one in enumerate(rows) if one.gather_params_s)
    again = frozenset(i for i, one in enumerate(rows) if one.gather_per_use_s)
    lookups = frozenset(i for i, one in enumerate(rows) if one.lookup)
    played = one_stage(len(rows), gathered, again, microbatches, lookups=lookups)
    return simulate([played], Costs([SegmentCost.of(one) for one in rows], overlap=True), spans=False).step_s


@given(st.lists(points(), min_size=1, max_size=5), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_fast_path_is_the_simulator(rows: list[FrontierPoint], microbatches: int) -> None:
    assert overlapped(rows, microbatches) == pytest.approx(simulated(rows, microbatches), rel=1e-9, abs=1e-12)


@pytest.mark.full
@given(st.lists(points(), min_size=1, max_size=9), st.integers(1, 9))
@settings(max_examples=5000, deadline=None)
def test_the_fast_path_is_the_simulator_widely(rows: list[FrontierPoint], microbatches: int) -> None:
    assert overlapped(rows, microbatches) == pytest.approx(simulated(rows, microbatches), rel=1e-9, abs=1e-12)


@given(st.integers(1, 6), st.integers(1, 5), st.data())
def test_lists_gather_as_often_as_points_are_priced_for(segments: int, microbatches: int, data: Any) -> None:
    lookups = data.draw(st.frozensets(st.integers(0, segments - 1)))
    every = frozenset(range(segments))
    played = one_stage(segments, every, every, microbatches, lookups=lookups)
    for index in range(segments):
        uses = chain_uses((index,), segments, microbatches, lookups)
        assert sum(one.kind == "gather" and one.segment == index for one in played) == round(2 * microbatches * uses)
