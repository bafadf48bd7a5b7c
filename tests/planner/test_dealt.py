"""The fullest stage against every way to deal segments."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from meshwright.planner.stages.dealt import Dealt


def brute_force_s(costs: np.ndarray, spare_s: np.ndarray) -> float:
    """The first segment belongs to the first stage, the last to the last, any other to any."""
    stages, segments = costs.shape
    dealt = ((0, *middle, stages - 1) for middle in product(range(stages), repeat=segments - 2))
    loads = ([sum(costs[s, i] for i in range(segments) if one[i] == s) for s in range(stages)] for one in dealt)
    return min(max(load - spare for load, spare in zip(own, spare_s, strict=True)) for own in loads)


@pytest.mark.parametrize("seed", range(40))
def test_no_way_to_deal_takes_less(seed: int) -> None:
    draw = np.random.default_rng(seed)
    stages, segments = int(draw.integers(2, 4)), int(draw.integers(3, 8))
    kinds = draw.uniform(0.5, 3.0, (stages, 3))
    costs = kinds[:, draw.choice(3, segments, p=(0.7, 0.2, 0.1))]
    spare_s = draw.uniform(-1.0, 0.5, stages)
    found, best = Dealt(costs).fullest_s(spare_s), brute_force_s(costs, spare_s)
    assert found <= best * (1 + 1e-9)
    assert found >= (costs.min(axis=0).sum() - spare_s.sum()) / stages * (1 - 1e-3), "no worse than the average"


def test_equal_layers_and_a_head_are_dealt_whole() -> None:
    costs = np.tile(np.array([1.0] * 8 + [1.5]), (3, 1))
    assert Dealt(costs).fullest_s(np.zeros(3)) == pytest.approx(3.5, rel=1e-3)
    assert Dealt(costs).fullest_s(np.zeros(3)) == pytest.approx(brute_force_s(costs, np.zeros(3)), rel=1e-3)
    assert costs[0].sum() / 3 < 3.2


def test_a_stage_that_waits_takes_less() -> None:
    costs = np.ones((2, 6))
    assert Dealt(costs).fullest_s(np.array([0.0, -0.5])) == pytest.approx(3.5, rel=1e-3)
    assert Dealt(costs).fullest_s(np.array([0.0, -2.5])) == pytest.approx(
        brute_force_s(costs, np.array([0.0, -2.5])), rel=1e-3
    )
