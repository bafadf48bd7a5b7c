"""What messages are made of."""

from __future__ import annotations

import pytest

from meshwright.cluster import load_cluster
from meshwright.errors import PlanError, counted
from meshwright.planner.pipeline.balance import balanced_cuts


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "stage", "1 stage"),
        (2, "stage", "2 stages"),
        (0, "piece", "0 pieces"),
        (3, "process", "3 processes"),
        (2, "micro-batch", "2 micro-batches"),
    ],
)
def test_one_is_singular(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_messages_count_so() -> None:
    with pytest.raises(PlanError, match="2 partitions of a model that can be cut in 1 piece\n"):
        balanced_cuts([1.0], 2)
    assert str(load_cluster("local:1")).startswith("local:1: 1 device,")
