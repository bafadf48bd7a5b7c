from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from math import nan
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import PlanError, VerifyError
from meshwright.plan.instruction import from_text
from meshwright.schedule import ORDERS, Durations, in_flight, lists, one_stage, pipeline, searched
from meshwright.simulate import Costs, SegmentCost, Timeline, Transfer, simulate

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 12))


def uniform(schedule: str, stages: int, microbatches: int, cost: SegmentCost, runs: int = 1) -> Timeline:
    made = pipeline(range(1, stages * runs + 1), microbatches, stages)
    return simulate(lists(made, ORDERS[schedule](made)), Costs([cost] * stages * runs))


@given(SIZES)
@settings(deadline=None)
def test_the_bubble_of_uniform_gpipe_is_exact(sizes: tuple[int, int]) -> None:
    stages, microbatches = sizes
    found = uniform("gpipe", stages, microbatches, SegmentCost(1.0, 1.0, 1.0))
    assert found.bubble == (stages - 1) / (microbatches + stages - 1)
    assert found.exposed == 0.0


@given(SIZES)
@settings(deadline=None)
def test_1f1b_takes_as_long_as_gpipe_and_holds_less(sizes: tuple[int, int]) -> None:
    stages, microbatches = sizes
    cost = SegmentCost(1.0, 1.0, 1.0, static_bytes=100, resident_bytes=8)
    late, early = (uniform(name, stages, microbatches, cost) for name in ("gpipe", "1f1b"))
    assert late.step_s == early.step_s == 3 * (microbatches + stages - 1)
    assert [stage.peak_bytes for stage in late.stages] == [100 + 8 * microbatches] * stages
    assert [stage.peak_bytes for stage in early.stages] == [
        100 + 8 * n for n in in_flight("1f1b", stages, microbatches)
    ]


@given(SIZES)
@settings(deadline=None)
def test_stages_on_one_core_take_as_long_as_their_work(sizes: tuple[int, int]) -> None:
    stages, microbatches = sizes
    cost = SegmentCost(1.0, 1.0, 1.0, static_bytes=100, resident_bytes=8, forward_transient_bytes=2)
    made = pipeline(range(1, stages + 1), microbatches, stages)
    order, alone = lists(made, ORDERS["1f1b"](made)), uniform("1f1b", stages, microbatches, cost)
    shared = simulate(order, Costs([cost] * stages, cores=dict.fromkeys(range(stages), ("core",))))
    apart = simulate(order, Costs([cost] * stages, cores={stage: (f"core {stage}",) for stage in range(stages)}))
    assert shared.step_s == pytest.approx(3 * stages * microbatches)
    assert apart.step_s == pytest.approx(alone.step_s)
    assert [stage.peak_bytes for stage in apart.stages] == [stage.peak_bytes for stage in alone.stages]
    assert [stage.busy_s for stage in apart.stages] == pytest.approx([stage.busy_s for stage in alone.stages])


@given(st.integers(1, 6), st.integers(0, 6))
@settings(deadline=None)
def test_zero_bubble_leaves_a_third_of_the_bubble(stages: int, more: int) -> None:
    microbatches = 2 * stages + more
    found = uniform("zero-bubble", stages, microbatches, SegmentCost(1.0, 1.0, 1.0, resident_bytes=1))
    assert found.step_s == 3 * microbatches + stages - 1
    assert found.peak_bytes == min(stages, microbatches)


@pytest.mark.parametrize(("stages", "rounds", "runs"), [(2, 1, 2), (4, 2, 2), (4, 3, 3), (3, 2, 4)])
def test_interleaving_divides_the_bubble(stages: int, rounds: int, runs: int) -> None:
    microbatches = stages * rounds
    found = uniform("interleaved", stages, microbatches, SegmentCost(1.0, 1.0, 1.0), runs)
    assert found.step_s == 3 * (microbatches * runs + stages - 1)


@given(st.integers(1, 5), st.integers(1, 8), st.data())
@settings(max_examples=100, deadline=None)
def test_a_searched_order_is_no_slower_than_1f1b(stages: int, microbatches: int, data: st.DataObject) -> None:
    seconds = [data.draw(st.floats(0.5, 2.0)) for _ in range(stages)]
    made = pipeline(range(1, stages + 1), microbatches)
    durations = Durations(tuple(seconds), tuple(seconds), tuple(seconds))
    costs = Costs([SegmentCost(s, s, s, resident_bytes=1) for s in seconds])
    allowed = [min(microbatches, stages)] * stages
    found = simulate(lists(made, searched(made, durations, allowed)), costs)
    assert found.peak_bytes <= min(microbatches, stages)
    assert found.step_s >= 3 * microbatches * max(seconds) - 1e-9
    usual = simulate(lists(made, ORDERS["1f1b"](made)), costs)
    assert found.step_s <= usual.step_s * (1 + 1e-9)


def test_one_stage_is_the_sum_of_its_points() -> None:
    costs = [SegmentCost(1.0, 2.0, 3.0, 0.5, 0.25, 0.125, static_bytes=10 * i, resident_bytes=i) for i in range(1, 4)]
    text = one_stage(3, frozenset({0, 1, 2}), frozenset({1}), microbatches=2)
    found = simulate([text], Costs(costs))
    assert found.step_s == pytest.approx(3 * (2 * 6.0 + 0.5 + 0.25 + 0.125))
    assert found.bubble == 0.0
    assert found.exposed == pytest.approx(3 * 0.75 / found.step_s)
    assert found.peak_bytes == 60 + 6


def test_what_collectives_take_of_a_segment_is_exposed() -> None:
    cost = SegmentCost(1.0, 2.0, 2.0, forward_comm_s=0.25, backward_comm_s=1.0)
    made = pipeline([1, 2], 3)
    for schedule in ("1f1b", "zero-bubble"):
        found = simulate(lists(made, ORDERS[schedule](made)), Costs([cost] * 2))
        assert found.step_s == uniform(schedule, 2, 3, SegmentCost(1.0, 2.0, 2.0)).step_s
        assert [(one.busy_s, one.exposed_s) for one in found.stages] == [(3 * 3.75, 3 * 1.25)] * 2


def test_a_smaller_last_micro_batch_takes_less() -> None:
    """Stage 0 ends its backwards, two seconds each, at 6.5 + 3 x 2; that of the last one takes one."""
    made = pipeline([1, 2], 4)
    costs = Costs([SegmentCost(1.0, 2.0, 0.0)] * 2, last=Costs([SegmentCost(0.5, 1.0, 0.0)] * 2))
    played = lists(made, ORDERS["gpipe"](made))
    assert simulate(played, costs).step_s == 13.5
    there = {(0, 0, 1): Transfer(0.25), (0, 1, 0): Transfer(0.25)}
    last = Costs([SegmentCost(0.5, 1.0, 0.0)] * 2, {(0, 0, 1): Transfer(0.0), (0, 1, 0): Transfer(8.0)})
    assert simulate(played, Costs([SegmentCost(1.0, 2.0, 0.0)] * 2, there, last=last)).step_s == 11.75 + 8 + 1


def test_gathers_and_reductions_run_beside_compute_where_they_may() -> None:
    """Gather 0 is waited for, gather 1 runs beside forward 0; reduce 1 beside backward 0, reduce 0 before the step."""
    text = from_text(
        "gather 0\ngather 1\nforward 0 mb0\nforward 1 mb0\nbackward 1 mb0\nreduce 1\nbackward 0 mb0\nreduce 0\nstep"
    )
    cost = SegmentCost(4.0, 2.0, 2.0, gather_params_s=1.0, reduce_grads_s=3.0, step_s=0.5, overlappable_s=4.0)
    found = simulate([text], Costs([cost] * 2, overlap=True))
    assert found.step_s == 1.0 + 4 + 4 + 4 + 4 + 3.0 + 2 * 0.5
    assert found.stages[0].exposed_s == 4.0
    assert simulate([text], Costs([cost] * 2)).step_s == 16 + 4.0 * 2 + 1.0


def two(transfer: Transfer, back: Transfer | None = None) -> Timeline:
    made = pipeline([1, 2], 1)
    moved = {(0, 0, 1): transfer, (0, 1, 0): back or transfer}
    return simulate(lists(made, ORDERS["gpipe"](made)), Costs([SegmentCost(1.0, 1.0, 1.0)] * 2, moved))


def test_a_transfer_is_exposed_where_nothing_else_runs() -> None:
    found = two(Transfer(2.0, latency_s=0.5))
    assert found.step_s == 6.0 + 2 * 2.5
    assert [stage.exposed_s for stage in found.stages] == [2.5, 2.5]
    assert [stage.bubble_s for stage in found.stages] == [found.step_s - 3.0 - 2.5] * 2


def test_messages_on_one_link_share_it() -> None:
    """0 -> 1 and 2 -> 3 begin together: over a shared link of 2 seconds each they take 4."""
    text = [
        "forward 0 mb0\nsend 0 mb0 to 1\nreceive_gradient 0 mb0 from 1\nbackward 0 mb0\nreduce 0\nstep",
        "receive 0 mb0 from 0\nforward 1 mb0\nbackward 1 mb0\nsend_gradient 0 mb0 to 0\nreduce 1\nstep",
        "forward 2 mb0\nsend 2 mb0 to 3\nreceive_gradient 2 mb0 from 3\nbackward 2 mb0\nreduce 2\nstep",
        "receive 2 mb0 from 2\nforward 3 mb0\nbackward 3 mb0\nsend_gradient 2 mb0 to 2\nreduce 3\nstep",
    ]
    reads = ((0, 1), (2, 3))

    def step_s(one: str, other: str, late: float = 1.0) -> float:
        moved = {(0, 0, 1): Transfer(2.0, links=(one,)), (2, 2, 3): Transfer(2.0, links=(other, "own"))}
        segments = [SegmentCost(1.0, 1.0, 0.0)] * 2 + [SegmentCost(late, 1.0, 0.0), SegmentCost(1.0, 1.0, 0.0)]
        return simulate([from_text(t) for t in text], Costs(segments, moved), reads=reads).step_s

    assert step_s("a", "b") == 6.0
    assert step_s("a", "a") == 8.0
    # The second begins when the first is half done: both go at half speed for two seconds, then it alone for one.
    assert step_s("a", "a", late=2.0) == 2.0 + 2.0 + 1.0 + 3.0


def test_buffers_hold_a_sender_back() -> None:
    made = pipeline([1, 2], 4)
    order = lists(made, ORDERS["gpipe"](made))
    segments = [SegmentCost(1.0, 1.0, 0.0), SegmentCost(1.0, 1.0, 0.0)]
    moved = {(0, 0, 1): Transfer(3.0, sent_bytes=7)}
    free, held = (simulate(order, Costs(segments, moved, buffers=n)) for n in (None, 1))
    assert free.step_s == held.step_s
    assert free.stages[0].peak_bytes == 3 * 7  # one on the wire, two behind it when the fourth forward ends
    assert held.stages[0].peak_bytes == 2 * 7


def test_what_is_sent_over_gloo_is_held_until_the_step_is_over() -> None:
    made = pipeline([1, 2], 4)
    order = lists(made, ORDERS["1f1b"](made))
    segments = [SegmentCost(1.0, 1.0, 0.0), SegmentCost(1.0, 1.0, 0.0)]
    moved = {(0, 0, 1): Transfer(0.1, sent_bytes=7, kept=True), (0, 1, 0): Transfer(0.1, sent_bytes=5, kept=True)}
    found = simulate(order, Costs(segments, moved))
    assert [stage.peak_bytes for stage in found.stages] == [4 * 7, 4 * 5]


def test_lists_that_never_end_are_said_to() -> None:
    late = from_text(
        "forward 0 mb0\nsend 0 mb0 to 1\nforward 0 mb1\nsend 0 mb1 to 1\n"
        "receive_gradient 0 mb0 from 1\nbackward 0 mb0\nreceive_gradient 0 mb1 from 1\nbackward 0 mb1\nreduce 0\nstep"
    )
    eager = from_text(
        "receive 0 mb0 from 0\nforward 1 mb0\nbackward 1 mb0\nsend_gradient 0 mb0 to 0\nreceive 0 mb1 from 0\n"
        "forward 1 mb1\nbackward 1 mb1\nsend_gradient 0 mb1 to 0\nreduce 1\nstep"
    )
    costs = [SegmentCost(1.0, 1.0, 1.0)] * 2
    assert simulate([late, eager], Costs(costs, buffers=1)).step_s == 9.0
    with pytest.raises(VerifyError, match=r"stages \[0, 1\] wait for ever"):
        simulate([late, eager], Costs(costs, buffers=0))


@given(st.integers(1, 4), st.integers(1, 6), st.data())
@settings(max_examples=40, deadline=None)
def test_memory_is_what_the_formula_says(stages: int, microbatches: int, data: st.DataObject) -> None:
    """static + (in flight - 1) x the stage's resident + the resident prefix + the running segment's transient."""
    number = st.integers(0, 50)
    costs = [SegmentCost(1.0, 1.0, 1.0, 0, 0, 0, 0, *(data.draw(number) for _ in range(4))) for _ in range(2 * stages)]
    made = pipeline(range(2, 2 * stages + 1, 2), microbatches)
    found = simulate(lists(made, ORDERS["1f1b"](made)), Costs(costs))
    for stage, flying in enumerate(in_flight("1f1b", stages, microbatches)):
        own = costs[2 * stage : 2 * stage + 2]
        whole = sum(cost.resident_bytes for cost in own)
        prefix = [own[0].resident_bytes, whole]
        transients = [max(cost.forward_transient_bytes, cost.backward_transient_bytes) for cost in own]
        running = max(a + b for a, b in zip(prefix, transients, strict=True))
        expected = sum(cost.static_bytes for cost in own) + (flying - 1) * whole + max(running, whole)
        assert found.stages[stage].peak_bytes == expected


@st.composite
def segment_costs(draw: st.DrawFn) -> SegmentCost:
    seconds, size = st.integers(1, 9).map(float), st.integers(0, 50)
    figures = [draw(seconds) for _ in range(6)], [draw(size) for _ in range(4)]
    gathers_s, reductions_s = figures[0][3:5]
    return SegmentCost(
        *figures[0],
        draw(st.sampled_from([0.0, reductions_s, gathers_s + reductions_s])),
        *figures[1],
        recompute_s=draw(seconds),
        gradient_bytes=draw(size),
        restored_bytes=draw(st.none() | size),
        rest_bytes=draw(st.none() | st.integers(0, figures[1][1])),
        added_bytes=draw(size),
        pending_grad_bytes=draw(size),
        forward_wire_s=draw(seconds),
        backward_wire_s=draw(seconds),
        backward_comm_s=draw(seconds),
        reduce_per_microbatch_s=draw(st.sampled_from([0.0, reductions_s])),
        grad_buckets=draw(st.integers(1, 3)),
        forward_host_s=draw(seconds),
        backward_host_s=draw(seconds),
        recompute_host_s=draw(seconds),
        prefetched_param_bytes=draw(size),
    )


@given(st.sampled_from(list(ORDERS)), st.integers(1, 3), st.integers(1, 5), st.booleans(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_step_is_the_same_without_its_spans(
    schedule: str, stages: int, microbatches: int, smaller: bool, data: st.DataObject
) -> None:
    """Without spans, equal runs of different micro-batches are one action."""
    costs = data.draw(st.lists(segment_costs(), min_size=2 * stages, max_size=2 * stages))
    some = st.frozensets(st.integers(0, 2 * stages - 1))
    gathered, recomputed = data.draw(some), data.draw(some)
    options = {"gathered": gathered, "regathered": gathered & data.draw(some), "recomputed": recomputed}
    made = pipeline(range(2, 2 * stages + 1, 2), microbatches, **options)
    every = Costs(costs, overlap=True, last=Costs(costs[::-1]) if smaller else None)
    found = lists(made, ORDERS[schedule](made))
    spanned = simulate(found, every)
    assert replace(spanned, spans=None) == simulate(found, every, spans=False)


def test_recomputation_begins_before_the_gradient_comes() -> None:
    """Two seconds of recomputing hide behind the wait of stage 0 for its gradient."""
    made = pipeline([1, 2], 1, recomputed=frozenset({0}))
    cost = SegmentCost(1.0, 1.0, 1.0, recompute_s=2.0, resident_bytes=5, backward_transient_bytes=3)
    found = simulate(lists(made, ORDERS["1f1b"](made)), Costs([cost] * 2))
    assert found.step_s == 6.0
    assert found.stages[0].busy_s == 5.0
    assert found.stages[0].peak_bytes == 8


def test_the_trace_opens(tmp_path: Path) -> None:
    found = two(Transfer(2.0))
    found.trace(tmp_path / "t.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {"forward 0 mb0", "backward 1 mb0", "value 0 mb0", "gradient 0 mb0"} <= {event["name"] for event in spans}
    assert max(event["ts"] + event["dur"] for event in spans) == found.step_s * 1e6
    assert all(event["dur"] >= 0 for event in spans)
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["compute", "values to stage 1", "compute", "gradients to stage 0"]
    assert any(event["ph"] == "C" for event in events)
    assert "bubble" in str(found)


def test_slices_of_a_track_follow_one_another(tmp_path: Path) -> None:
    made = pipeline(range(1, 5), 4, 2)
    ways = {(segment, *ends): Transfer(1.7) for segment in range(4) for ends in ((0, 1), (1, 0))}
    found = simulate(lists(made, ORDERS["interleaved"](made)), Costs([SegmentCost(1.0, 1.0, 1.0)] * 4, ways))
    found.trace(tmp_path / "t.json")
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) == 6
    for spans in map(sorted, tracks.values()):
        assert all(after[0] >= before[1] - 1e-6 for before, after in pairwise(spans))


@pytest.mark.parametrize(
    ("costs", "fault"),
    [
        (Costs([SegmentCost(1.0, 1.0, 1.0)]), "costs of 1 layer\n  expected: 2, one for each"),
        (Costs([SegmentCost(1.0, 1.0, 1.0)] * 2, ranks=[8]), "ranks=[8] for 2 stages\n  expected: 2 numbers"),
        (Costs([SegmentCost(1.0, 1.0, 1.0), SegmentCost(1.0, -1.0, 1.0)]), "layer 1 has backward_input_s=-1.0"),
        (Costs([SegmentCost(1.0, 1.0, 1.0), SegmentCost(1.0, 1.0, nan)]), "layer 1 has backward_weight_s=nan"),
        (Costs([SegmentCost(1.0, 1.0, 1.0)] * 2, {(0, 0, 1): Transfer(-1.0)}), "(0, 0, 1) has seconds=-1.0"),
    ],
)
def test_costs_that_are_none_are_refused(costs: Costs, fault: str) -> None:
    made = pipeline([1, 2], 2)
    with pytest.raises(PlanError) as caught:
        simulate(lists(made, ORDERS["gpipe"](made)), costs)
    assert fault in str(caught.value)
    assert caught.value.todo


def test_ranks_of_a_stage_count_once_and_weigh_in_the_shares() -> None:
    made = pipeline([1, 2], 2)
    order = lists(made, ORDERS["gpipe"](made))
    segments = [SegmentCost(1.0, 1.0, 0.0), SegmentCost(3.0, 3.0, 0.0)]
    one, many = (simulate(order, Costs(segments, ranks=ranks)) for ranks in ((1, 1), (1, 16383)))
    assert one.step_s == many.step_s
    assert one.bubble > many.bubble
