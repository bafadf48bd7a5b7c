from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import PlanError, VerifyError
from meshwright.plan.instruction import Instruction, from_text, to_text
from meshwright.schedule import ORDERS, Durations, Pipeline, Run, in_flight, lists, pipeline, searched, verify_lists
from meshwright.schedule.check import least_buffers, most_in_flight


@st.composite
def pipelines(draw: st.DrawFn, rounds: int = 1) -> Pipeline:
    stages, microbatches = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    sizes = draw(st.lists(st.integers(1, 3), min_size=stages * rounds, max_size=stages * rounds))
    cuts = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    owned = st.sets(st.integers(0, cuts[-1] - 1)).map(frozenset)
    gathered = draw(owned)
    return pipeline(
        cuts, microbatches, stages, gathered=gathered, regathered=gathered & draw(owned), recomputed=draw(owned)
    )


def check(made: Pipeline, schedule: str) -> None:
    found = lists(made, ORDERS[schedule](made))
    allowed = in_flight(schedule, made.stages, made.microbatches, len(made.runs) // made.stages)
    verify_lists(found, in_flight=allowed)
    assert tuple(from_text(to_text(stage)) for stage in found) == found
    if made.stages > 1:  # runs that follow on each other on one stage count as one
        assert tuple(map(most_in_flight, found)) == allowed


@given(pipelines(), st.sampled_from(["gpipe", "1f1b", "zero-bubble"]))
@settings(max_examples=80, deadline=None)
def test_schedules_of_any_size_run_to_their_end(made: Pipeline, schedule: str) -> None:
    check(made, schedule)


@given(st.integers(1, 4).flatmap(pipelines))
@settings(max_examples=80, deadline=None)
def test_interleaved_runs_to_its_end(made: Pipeline) -> None:
    check(made, "interleaved")


@given(st.integers(1, 3).flatmap(pipelines), st.data())
@settings(max_examples=60, deadline=None)
def test_searched_runs_to_its_end_within_what_it_may_hold(made: Pipeline, data: st.DataObject) -> None:
    seconds = st.lists(st.floats(0.1, 3.0), min_size=len(made.runs), max_size=len(made.runs)).map(tuple)
    durations = Durations(data.draw(seconds), data.draw(seconds), data.draw(seconds))
    allowed = [data.draw(st.integers(len(made.runs), 20)) for _ in range(made.stages)]
    found = lists(made, searched(made, durations, allowed))
    verify_lists(found, in_flight=allowed, buffers=least_buffers(found))
    assert least_buffers(found) <= made.microbatches * len(made.runs)


@pytest.mark.parametrize("routed_via_stages", [frozenset(), frozenset({0, 1})])
@pytest.mark.parametrize("schedule", list(ORDERS))
def test_values_that_skip_stages(schedule: str, routed_via_stages: frozenset[int]) -> None:
    """A U-Net: 0 is read by 1 and 7, 1 by 2 and 6, the others by the next."""
    reads = (*((i, i + 1) for i in range(7)), (0, 7), (1, 6))
    made = pipeline([2, 4, 6, 8], 5, reads=reads, routed_via_stages=routed_via_stages)
    found = lists(made, ORDERS[schedule](made))
    verify_lists(found, reads=reads, buffers=4)
    text = [to_text(stage) for stage in found]
    assert ("send 0 mb0 to 3" in text[0]) == (not routed_via_stages)
    assert ("send_gradient 0 mb4 to 2" in text[3]) == bool(routed_via_stages)
    assert text[3].count("receive 0 mb2 from") == 1


TORCH = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (2, 6), (4, 4), (4, 8), (4, 10)])
@pytest.mark.parametrize("schedule", list(TORCH))
def test_the_order_is_that_of_torch(schedule: str, stages: int, microbatches: int) -> None:
    rounds = 2 if schedule == "interleaved" else 1
    made = pipeline(range(1, stages * rounds + 1), microbatches, stages)
    mine = [
        [f"{task.run}{'F' if task.kind == 'forward' else 'B'}{task.microbatch}" for task in tasks]
        for tasks in ORDERS[schedule](made)
    ]
    theirs = torch_order(TORCH[schedule], stages, microbatches, rounds)
    if schedule == "1f1b":  # torch's list for the last stage names micro-batches one too high: compare the kinds
        mine, theirs = ([["F" if "F" in task else task for task in tasks] for tasks in side] for side in (mine, theirs))
    assert mine == theirs


def torch_order(name: str, stages: int, microbatches: int, rounds: int) -> list[list[str]]:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod = 0, stages, None
    stage.num_stages, stage.stage_index, stage.has_backward = stages * rounds, 0, True
    found: Any = get_schedule_class(name)([stage] * rounds if rounds > 1 else stage, microbatches)
    orders = found.pipeline_order if rounds > 1 else found._get_pipeline_order()
    return [
        [str(action) for action in orders[rank] if action and "REDUCE" not in str(action)] for rank in range(stages)
    ]


def test_zero_bubble_holds_no_more_than_the_first_stage_of_1f1b() -> None:
    assert in_flight("1f1b", 4, 8) == (4, 3, 2, 1)
    assert in_flight("zero-bubble", 4, 8) == (4, 4, 4, 4)
    assert in_flight("gpipe", 4, 8) == (8, 8, 8, 8)
    assert in_flight("interleaved", 4, 8, 2) == (11, 9, 7, 5)


def test_what_does_not_make_a_pipeline_is_refused() -> None:
    with pytest.raises(PlanError, match="the same number of runs"):
        pipeline([1, 2, 3], 4, stages=2)
    with pytest.raises(PlanError, match="a layer in each"):
        pipeline([1, 1, 3], 4)
    with pytest.raises(PlanError, match="0 micro-batches"):
        pipeline([1, 2], 0)
    with pytest.raises(PlanError, match="one a stage"):
        ORDERS["1f1b"](pipeline([1, 2, 3, 4], 4, stages=2))
    with pytest.raises(PlanError, match="dealt round"):
        ORDERS["interleaved"](Pipeline((Run(0, 1, 0), Run(1, 2, 1), Run(2, 3, 1), Run(3, 4, 0)), 2))


BASE = {
    0: "forward 0 mb0\nsend 0 mb0 to 1\nreceive_gradient 0 mb0 from 1\nbackward 0 mb0\nreduce 0\nstep",
    1: "receive 0 mb0 from 0\nforward 1 mb0\nbackward 1 mb0\nsend_gradient 0 mb0 to 0\nreduce 1\nstep",
}


def changed(stage: int, old: str, new: str) -> list[tuple[Instruction, ...]]:
    texts = dict(BASE)
    assert old in texts[stage]
    texts[stage] = texts[stage].replace(old, new)
    return [from_text(text) for text in texts.values()]


def test_the_lists_below_are_right_before_they_are_spoiled() -> None:
    verify_lists(changed(0, "step", "step"), in_flight=(1, 1), buffers=0)


@pytest.mark.parametrize(
    ("stage", "old", "new", "fault"),
    [
        (0, "send 0 mb0 to 1\n", "", "one from each stage it was sent to"),
        (1, "send_gradient 0 mb0 to 0\n", "", "has no send on stage 1"),
        (1, "receive 0 mb0 from 0\n", "", "reads segment 0's value"),
        (0, "receive_gradient 0 mb0 from 1\n", "", "has 0 gradients"),
        (0, "send 0 mb0 to 1\n", "send 0 mb0 to 1\nsend 0 mb0 to 1\n", "stands twice"),
        (0, "forward 0 mb0\nsend 0 mb0 to 1\n", "send 0 mb0 to 1\nforward 0 mb0\n", "has no value to send"),
        (1, "backward 1 mb0\nsend_gradient 0 mb0 to 0", "send_gradient 0 mb0 to 0\nbackward 1 mb0", "no gradient"),
        (0, "reduce 0\n", "", "reduces segments"),
        (1, "reduce 1\n", "reduce 1\nreduce 1\n", "reduces segments"),
        (0, "step", "", "does not end with its step"),
        (
            1,
            "forward 1 mb0\nbackward 1 mb0\n",
            "forward 1 mb0\nbackward 1 mb0\nforward 0 mb1\nbackward 0 mb1\n",
            "stages",
        ),
        (1, "forward 1 mb0\n", "forward 1 mb0\nforward 2 mb1\nbackward 2 mb1\n", "reads segment 1's value"),
    ],
)
def test_a_fault_is_named(stage: int, old: str, new: str, fault: str) -> None:
    with pytest.raises(VerifyError, match=fault):
        verify_lists(changed(stage, old, new))


def test_stages_that_wait_for_each_other_are_found() -> None:
    """Both send before they receive: with a buffer it ends, without one it does not."""
    made = pipeline([1, 2], 2)
    found = [list(stage) for stage in lists(made, ORDERS["1f1b"](made))]
    late = from_text(
        "forward 0 mb0\nsend 0 mb0 to 1\nforward 0 mb1\nsend 0 mb1 to 1\n"
        "receive_gradient 0 mb0 from 1\nbackward 0 mb0\nreceive_gradient 0 mb1 from 1\nbackward 0 mb1\nreduce 0\nstep"
    )
    eager = from_text(
        "receive 0 mb0 from 0\nforward 1 mb0\nbackward 1 mb0\nsend_gradient 0 mb0 to 0\nreceive 0 mb1 from 0\n"
        "forward 1 mb1\nbackward 1 mb1\nsend_gradient 0 mb1 to 0\nreduce 1\nstep"
    )
    assert least_buffers(found) == 0
    assert least_buffers([late, eager]) == 1
    verify_lists([late, eager], buffers=1)
    with pytest.raises(VerifyError, match="wait for each other: stage 0 at `send 0 mb1 to 1`, stage 1"):
        verify_lists([late, eager], buffers=0)


def test_too_many_in_flight_are_found() -> None:
    made = pipeline([1, 2], 4)
    with pytest.raises(VerifyError, match="stage 0 has 4 micro-batches in flight"):
        verify_lists(lists(made, ORDERS["gpipe"](made)), in_flight=(2, 1))


def test_a_receive_out_of_turn_is_found() -> None:
    made = pipeline([1, 2], 2)
    found = [list(stage) for stage in lists(made, ORDERS["gpipe"](made))]
    text = to_text(found[1])
    swapped = text.replace("receive 0 mb0", "x").replace("receive 0 mb1", "receive 0 mb0").replace("x", "receive 0 mb1")
    with pytest.raises(VerifyError, match="out of turn"):
        verify_lists([found[0], from_text(swapped)])


MADE = pipeline([1, 2, 3], 2)
LISTS = lists(MADE, ORDERS["1f1b"](MADE))


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda: ORDERS["searched"], "call searched(pipeline, durations, in_flight)"),
        (lambda: ORDERS["2f2b"], "schedule '2f2b'\n  expected: one of gpipe, 1f1b"),
        (lambda: in_flight("searched", 4, 8), "a searched order holds what it is given"),
        (lambda: pipeline([1, 2, 3], 2, reads={0: [1]}), "reads={0: [1]}\n  expected: pairs (a layer, one that"),
        (lambda: pipeline([1, 2, 3], 2, reads=[0, 1]), "reads=[0, 1]\n  expected: pairs"),
        (lambda: verify_lists(LISTS, in_flight=[4]), "in_flight=[4] for 3 stages\n  expected: 3 numbers"),
        (lambda: verify_lists(LISTS, buffers=-1), "buffers=-1\n  expected: a whole number from 0"),
    ],
)
def test_arguments_of_another_form_are_refused(call: Callable[[], object], fault: str) -> None:
    with pytest.raises(PlanError) as caught:
        call()
    assert fault in str(caught.value)
    assert caught.value.todo
