from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import PlanError
from meshwright.planner.stages.clusters import cluster


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
    with pytest.raises(PlanError, match="0 clusters"):
        cluster([1.0], 0)
