"""A step as executed: gathers and reductions beside compute, the longer of host and device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster import Group, Link, Member, load_cluster
from meshwright.plan import Choice, FrontierPoint
from meshwright.price import overlap
from meshwright.price.overlap import host_seconds, overlapped, pending_grad_bytes

BLANK = FrontierPoint(Choice(0, (), (), {}), *(0.0,) * 7, *(0,) * 4)


def point(forward_s: float, backward_s: float, reduced_s: float = 0.0, **more: Any) -> FrontierPoint:
    """One whose reduction may run beside backward."""
    made = replace(
        BLANK, forward_s=forward_s, backward_input_s=backward_s, reduce_grads_s=reduced_s, overlappable_s=reduced_s
    )
    return replace(made, **more)


def test_without_anything_overlappable_it_is_the_sum() -> None:
    points = [replace(point(1, 2, 3, gather_params_s=0.5, step_s=0.25), overlappable_s=0.0) for _ in range(3)]
    assert overlapped(points, 4) == pytest.approx(sum(one.seconds(4) for one in points))


def test_short_reductions_are_hidden_but_for_the_last() -> None:
    assert overlapped([point(1, 2, 0.5) for _ in range(4)]) == pytest.approx(4 * 3 + 0.5)


def test_long_reductions_queue_up_behind_the_first_backward() -> None:
    """Backward begins with the last segment; its reduction starts when that is done."""
    assert overlapped([point(1, 2, 5) for _ in range(4)]) == pytest.approx(4 * 1 + 2 + 4 * 5)


def test_gradients_leave_in_parts_while_backward_runs() -> None:
    """Of four parts the first leaves after a quarter of a backward, the last at its end."""
    assert overlapped([point(1, 2, 5, grad_buckets=4) for _ in range(4)]) == pytest.approx(4 * 1 + 2 / 4 + 4 * 5)
    assert overlapped([point(1, 2, 0.4, grad_buckets=4) for _ in range(4)]) == pytest.approx(4 * 3 + 0.4 / 4)


def test_gradients_are_reduced_after_the_last_micro_batch() -> None:
    points = [point(1, 2, 3) for _ in range(2)]
    assert overlapped(points, 3) == pytest.approx(2 * 6 + 2 + 2 + 2 * 3)


def test_scattered_gradients_are_reduced_after_each() -> None:
    """Nine seconds of reductions over three micro-batches hide behind them, but for the very last."""
    points = [point(1, 2, 3, reduce_per_microbatch_s=3.0), point(1, 2)]
    assert overlapped(points, 3) == pytest.approx(3 * 6 + 1)


def gathering(seconds: float, uses: int = 1, **more: Any) -> FrontierPoint:
    """One whose gather, before each use or before the first, may run beside the segment before."""
    gather_params_s = seconds * uses
    return point(
        1,
        2,
        gather_params_s=gather_params_s,
        gather_per_use_s=gather_params_s if uses > 1 else 0.0,
        overlappable_s=gather_params_s,
        **more,
    )


def test_the_lane_rests_while_a_segment_uses_its_links() -> None:
    """Reductions of 1.5 s beside backwards of 2 s, of which the segment's own collectives take 1: one second of each is
    hidden; the rest queues up behind the last."""
    alone, sharing = point(1, 2, 1.5), point(1, 2, 1.5, backward_wire_s=1.0)
    assert overlapped([alone] * 3) == pytest.approx(3 * 3 + 1.5)
    assert overlapped([sharing] * 3) == pytest.approx(3 * 3 + 2 * 0.5 + 1.5)
    assert overlapped([point(1, 2, 0.5, backward_wire_s=1.0)] * 3) == pytest.approx(3 * 3 + 0.5)
    assert overlapped([point(1, 2, 1.5, backward_wire_s=2.0)] * 3) == pytest.approx(3 * 3 + 3 * 1.5)


def test_a_gather_that_rests_is_waited_for_longer() -> None:
    """Beside a forward of 1 s, half of it on the wire, only 0.5 of the next segment's 0.75 s are hidden."""
    points = [gathering(0.75, forward_wire_s=0.5)] * 3
    assert overlapped(points) == pytest.approx(3 * 3 + 0.75 + 2 * 0.25)


def test_the_first_gather_is_waited_for() -> None:
    waited = point(1, 2, gather_params_s=4.0)
    assert overlapped([waited]) == overlapped([gathering(4.0)]) == pytest.approx(7)


def test_gathers_run_beside_the_segment_before() -> None:
    """0.5 s each: only the first is waited for."""
    assert overlapped([gathering(0.5) for _ in range(4)]) == pytest.approx(4 * 3 + 0.5)


def test_long_gathers_queue_up() -> None:
    """Three segments: the second's comes after the first's, and so on; the last one's forward waits for all."""
    assert overlapped([gathering(5.0) for _ in range(3)]) == pytest.approx(3 * 5 + 1 + 3 * 2)


def test_a_segment_that_runs_twice_in_a_row_keeps_what_it_gathered() -> None:
    """Gathers of 1.5 s: forward 0 waits for its own, forward 1 half a second; nothing between the last forward and
    its backward; backward 0 had 2 s beside backward 1."""
    assert overlapped([gathering(1.5, uses=2), gathering(1.5)]) == pytest.approx(1.5 + 1 + 0.5 + 1 + 2 + 2)


def test_parameters_that_came_early_take_memory() -> None:
    points = [gathering(1.0, uses=2, prefetched_param_bytes=size) for size in (300, 100, 200)]
    assert pending_grad_bytes(points) == 300  # of the first segment, while the second's backward runs
    assert pending_grad_bytes([replace(one, overlappable_s=0.0) for one in points]) == 0


def test_a_slow_host_bounds_the_step() -> None:
    points = [point(1, 2, forward_host_s=2.0, backward_host_s=3.0, step_host_s=0.5) for _ in range(2)]
    assert host_seconds(points, 2) == pytest.approx(2 * 2 * 5 + 1)
    assert overlapped(points, 2) == host_seconds(points, 2)
    quick = [replace(one, forward_host_s=0.1, backward_host_s=0.1) for one in points]
    assert overlapped(quick, 2) == pytest.approx(12)


def test_gradients_that_wait_take_memory() -> None:
    slow = [point(1, 2, 5, pending_grad_bytes=100) for _ in range(4)]
    assert pending_grad_bytes(slow) == 300  # all but the first segment's own
    quick = [point(1, 2, 0.5, pending_grad_bytes=100) for _ in range(4)]
    assert pending_grad_bytes(quick) == 100  # that of the segment before, for a while
    assert pending_grad_bytes([replace(one, overlappable_s=0.0) for one in slow]) == 0


@given(
    st.lists(st.tuples(*(st.floats(0, 4),) * 4, st.floats(0, 1), st.booleans()), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_it_lies_between_compute_and_the_sum(rows: list[tuple[Any, ...]], microbatches: int) -> None:
    points = [
        point(
            forward_s,
            backward_s,
            reduce_grads_s,
            gather_params_s=gather_params_s,
            gather_per_use_s=gather_params_s * share,
            reduce_per_microbatch_s=reduce_grads_s * scatter,
            overlappable_s=reduce_grads_s + (gather_params_s if scatter else 0.0),
        )
        for forward_s, backward_s, reduce_grads_s, gather_params_s, share, scatter in rows
    ]
    found = overlapped(points, microbatches)
    sums = sum(one.seconds(microbatches) for one in points)
    assert sums - sum(one.overlappable_s for one in points) <= found * (1 + 1e-9) + 1e-9
    assert found <= sums * (1 + 1e-9) + 1e-9
    assert found + 1e-9 >= sum(one.overlappable_s for one in points)


def test_collectives_run_beside_compute_unless_the_same_cores_carry_them() -> None:
    assert load_cluster("dgx-h100").mesh((8,)).any_overlap
    assert not load_cluster("dgx-h100").mesh((1,)).any_overlap
    local = load_cluster("local:2")
    assert not local.mesh((2,)).any_overlap
    hosts = replace(local, root=Group("pod", Link(2e-4, 1e7), (Member(local.root, 2),)))
    assert hosts.mesh((2, 2)).any_overlap
    across, inside = hosts.mesh((2, 2)).axes
    assert hosts.mesh((2, 2)).overlaps_compute(across)
    assert not hosts.mesh((2, 2)).overlaps_compute(inside)
    assert hosts.mesh((4,)).overlaps_compute(hosts.mesh((4,)).axes[0])


def test_what_the_same_cores_carry_keeps_pace_with_them() -> None:
    """Reductions that would queue up on a lane: no more waits than beside one run, however many micro-batches."""
    slow = [
        point(1, 2, 320, reduce_per_microbatch_s=320.0, pending_grad_bytes=100, core_driven_comm_s=320.0)
        for _ in range(4)
    ]
    assert pending_grad_bytes(slow) == pending_grad_bytes(slow, 32) == 100
    assert pending_grad_bytes([replace(one, core_driven_comm_s=0.0) for one in slow], 32) > 1000
    early = [gathering(1.0, uses=2, prefetched_param_bytes=size, core_driven_comm_s=2.0) for size in (300, 100, 200)]
    assert pending_grad_bytes(early) == 300


def test_what_the_same_cores_carry_takes_their_time_whenever_it_runs() -> None:
    """Reductions of 0.5 s: hidden but for the last; half of it carried, the rest hidden, the last one's beside what is
    carried; all of it carried."""
    assert overlapped([point(1, 2, 0.5)] * 4) == pytest.approx(4 * 3 + 0.5)
    assert overlapped([point(1, 2, 0.5, core_driven_comm_s=0.25)] * 4) == pytest.approx(4 * 3.25)
    assert overlapped([point(1, 2, 0.5, core_driven_comm_s=0.5)] * 4) == pytest.approx(4 * 3.5)


def test_what_the_same_cores_carry_is_begun_as_early_and_takes_memory() -> None:
    points = [gathering(1.0, uses=2, prefetched_param_bytes=size, core_driven_comm_s=2.0) for size in (300, 100, 200)]
    assert pending_grad_bytes(points) == 300


@given(
    st.lists(
        st.builds(
            lambda forward_s, gather_params_s, reduce_grads_s, again, scatter, part, late: point(
                forward_s,
                2 * forward_s,
                reduce_grads_s,
                gather_params_s=gather_params_s,
                gather_per_use_s=again * gather_params_s,
                reduce_per_microbatch_s=scatter * reduce_grads_s,
                overlappable_s=part * (gather_params_s + reduce_grads_s),
                pending_grad_bytes=late,
                prefetched_param_bytes=late // 2,
            ),
            st.sampled_from((0.1, 1.0, 1.7)),
            st.sampled_from((0.0, 0.3, 2.9)),
            st.sampled_from((0.0, 0.7, 11.0)),
            st.sampled_from((0.0, 1.0)),
            st.sampled_from((0.0, 0.5, 1.0)),
            st.sampled_from((0.0, 0.6, 1.0)),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(3, 40),
)
def test_micro_batches_that_are_alike_take_what_playing_each_of_them_takes(
    points: list[FrontierPoint], count: int
) -> None:
    found = overlapped(points, count), pending_grad_bytes(points, count)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(overlap, "SAME", -1.0)  # none is like another
        patched.setattr(overlap, "_last", [])
        assert overlapped(points, count) == pytest.approx(found[0], rel=1e-12)
        assert pending_grad_bytes(points, count) == found[1]
