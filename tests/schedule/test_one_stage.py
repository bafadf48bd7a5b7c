from __future__ import annotations

from meshwright.plan.instruction import to_text
from meshwright.schedule import one_stage
from meshwright.schedule.of_plan import forward_only


def test_gathered_once_or_for_each_use() -> None:
    """Each gather before the segment that runs before its own; what has just run is kept; gathers go before
    reductions."""
    text = to_text(one_stage(3, gathered=frozenset({0, 1, 2}), regathered=frozenset({1, 2})))
    assert text.splitlines() == [
        "gather 0",
        "gather 1",
        "forward 0 mb0",
        "gather 2",
        "forward 1 mb0",
        "free 1",
        "forward 2 mb0",
        "gather 1",
        "backward 2 mb0",
        "free 2",
        "reduce 2",
        "backward 1 mb0",
        "free 1",
        "reduce 1",
        "backward 0 mb0",
        "reduce 0",
        "step",
    ]


def test_a_parameter_that_neighbours_share_is_dropped_before_it_is_gathered_again() -> None:
    every = frozenset({0, 1})
    lines = to_text(one_stage(2, every, every, sharing=frozenset({(0, 1), (1, 0)}))).splitlines()
    assert lines[:5] == ["gather 0", "forward 0 mb0", "free 0", "gather 1", "forward 1 mb0"]
    assert lines[5:9] == ["backward 1 mb0", "free 1", "gather 0", "reduce 1"]


def test_the_first_segment_keeps_its_parameters_for_the_next_micro_batch() -> None:
    every = frozenset({0, 1})
    lines = to_text(one_stage(2, every, every, microbatches=3)).splitlines()
    assert (lines.count("gather 0"), lines.count("gather 1")) == (4, 3)


def test_evaluating_gathers_what_training_finds_from_the_backward_before() -> None:
    every = frozenset({0, 1})
    lines = to_text(forward_only(one_stage(2, every, every, microbatches=2))).splitlines()
    assert lines == [
        "gather 0",
        "gather 1",
        "forward 0 mb0",
        "free 0",
        "forward 1 mb0",
        "gather 1",
        "gather 0",
        "forward 0 mb1",
        "free 0",
        "forward 1 mb1",
    ]


def test_nothing_is_gathered_for_a_backward_that_reads_no_parameter() -> None:
    """But where the segment's next forward comes at once, which would have to."""
    every = frozenset({0, 1, 2})
    lines = to_text(one_stage(3, every, every, microbatches=2, lookups=frozenset({0, 1}))).splitlines()
    assert [lines.count(f"gather {segment}") for segment in range(3)] == [2, 2, 2]
    assert [lines.count(f"free {segment}") for segment in range(3)] == [2, 2, 2]
    turn = lines.index("forward 0 mb1")
    assert "gather 0" in lines[lines.index("backward 2 mb0") : turn], "beside a backward, for the forward that follows"
    assert not any(line.startswith(("gather", "free")) for line in lines[lines.index("backward 2 mb1") + 2 :])


def test_gradients_are_reduced_once_after_the_last_microbatch() -> None:
    lines = to_text(one_stage(1, frozenset({0}), frozenset(), microbatches=3)).splitlines()
    assert lines.count("gather 0") == 1
    assert lines[-2:] == ["reduce 0", "step"]
    assert sum(line.startswith("backward") for line in lines) == 3
