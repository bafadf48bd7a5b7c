from __future__ import annotations

from collections.abc import Hashable
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.simulate import SegmentCost
from meshwright.solve.stages.problem import StagePoint
from meshwright.solve.stages.ranges import Mix, cluster, range_points

KEEP = StagePoint(SegmentCost(1.0, 1.0, 1.0, static_bytes=10, resident_bytes=100, backward_transient_bytes=7), "a", "a")
AGAIN = StagePoint(SegmentCost(1.0, 2.0, 1.0, static_bytes=10, resident_bytes=20, backward_transient_bytes=9), "a", "a")
WORSE = StagePoint(SegmentCost(1.0, 1.9, 1.0, static_bytes=10, resident_bytes=90), "a", "a")
HEAD = StagePoint(SegmentCost(5.0, 5.0, 5.0, static_bytes=50, resident_bytes=5), "a", "a")


def offers(kind: Hashable, mesh: int, microbatches: int) -> list[StagePoint]:
    return [HEAD] if kind == "head" else [KEEP, AGAIN, WORSE]


def test_some_of_the_layers_recompute() -> None:
    points = range_points(["layer"] * 8 + ["head"], offers)
    found = points(0, 9, 0, 4)
    seconds = sorted(point.cost.backward_s for point in found)
    assert seconds == [8 * 2 + 10 + n for n in (0, 2, 4, 6, 8)]
    first = min(found, key=lambda point: point.cost.backward_s)
    assert (first.cost.static_bytes, first.cost.resident_bytes) == (130, 805)
    assert first.cost.backward_transient_bytes == 7
    mixed = next(point for point in found if point.cost.backward_s == 28)
    assert isinstance(mixed.choice, Mix)
    assert sorted((str(kind), count) for kind, _, count in mixed.choice.counts) == [
        ("head", 1),
        ("layer", 2),
        ("layer", 6),
    ]
    assert mixed.cost.resident_bytes == 6 * 100 + 2 * 20 + 5


def test_layouts_are_not_mixed() -> None:
    other = StagePoint(KEEP.cost, "b", "b")
    points = range_points(["layer", "layer"], lambda *_: [KEEP, other])
    assert {(point.enter, point.leave) for point in points(0, 2, 0, 1)} == {("a", "a"), ("b", "b")}


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=8), st.integers(1, 8))
@settings(deadline=None)
def test_clusters_are_as_even_as_can_be(weights: list[float], most: int) -> None:
    cuts = cluster(weights, most)
    assert cuts[0] == 0
    assert cuts[-1] == len(weights)
    assert len(cuts) - 1 <= most
    best = min(
        max(sum(weights[a:b]) for a, b in zip((0, *inner), (*inner, len(weights)), strict=True))
        for count in range(min(most, len(weights)))
        for inner in combinations_with_replacement(range(len(weights) + 1), count)
    )
    assert max(sum(weights[a:b]) for a, b in pairwise(cuts)) <= best * (1 + 1e-6)


def test_no_clusters_are_refused() -> None:
    with pytest.raises(Exception, match="0 clusters"):
        cluster([1.0], 0)
