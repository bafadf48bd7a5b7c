from __future__ import annotations

from meshwright.plan.instruction import to_text
from meshwright.schedule import one_stage


def test_gathered_once_or_for_each_use() -> None:
    text = to_text(one_stage(2, gathered=frozenset({0, 1}), regathered=frozenset({1})))
    assert text.splitlines() == [
        "gather 0",
        "forward 0 mb0",
        "gather 1",
        "forward 1 mb0",
        "free 1",
        "gather 1",
        "backward 1 mb0",
        "free 1",
        "reduce 1",
        "backward 0 mb0",
        "reduce 0",
        "step",
    ]


def test_gradients_are_reduced_once_after_the_last_microbatch() -> None:
    lines = to_text(one_stage(1, frozenset({0}), frozenset(), microbatches=3)).splitlines()
    assert lines.count("gather 0") == 1
    assert lines[-2:] == ["reduce 0", "step"]
    assert sum(line.startswith("backward") for line in lines) == 3
