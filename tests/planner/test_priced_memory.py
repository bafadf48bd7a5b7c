"""Priced memory against every way to run a row."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.planner.stages.priced_memory import PricedMemory
from meshwright.schedule import ORDERS, pipeline
from meshwright.schedule.orders import in_flight_by_run

FLIGHTS = np.array([1.0, 3.0, 8.0])
PRICES = 1.0 / 2.0 ** np.arange(8)


def drawn(seed: int) -> tuple[list[np.ndarray], np.ndarray, PricedMemory]:
    """Of each row its ways to run it (seconds, static bytes, bytes of a micro-batch), and its update."""
    draw = np.random.default_rng(seed)
    ways = [draw.uniform(0.0, 10.0, (draw.integers(1, 9), 3)) for _ in range(6)]
    update_s = draw.uniform(0.0, 2.0, len(ways))
    cost_s = np.array(
        [[[min(s + price * (p + f * k) for s, p, k in row) for f in FLIGHTS] for price in PRICES] for row in ways]
    )
    free_s = np.array([row[:, 0].min() for row in ways])
    return ways, update_s, PricedMemory(PRICES, FLIGHTS, cost_s, free_s, update_s)


@pytest.mark.parametrize("seed", range(20))
def test_no_way_within_the_time_takes_fewer_bytes_or_has_more_in_flight(seed: int) -> None:
    ways, update_s, memory = drawn(seed)
    for limit_s in (2.0, 4.0, 8.0, 12.0):
        for flight in (1.0, 2.0, 3.0, 5.5, 8.0):
            least = memory.least_bytes(limit_s, flight)
            for row, later_s, bound in zip(ways, update_s, least, strict=True):
                held = [p + flight * k for s, p, k in row if s + later_s <= limit_s]
                assert not held or bound <= min(held) + 1e-9
        limit_bytes = np.full(len(ways), 12.0)
        most = memory.most_in_flight(limit_s, limit_bytes)
        for row, later_s, bound in zip(ways, update_s, most, strict=True):
            held = [(12.0 - p) / k for s, p, k in row if s + later_s <= limit_s and p <= 12.0]
            assert not held or bound >= min(max(held), FLIGHTS[-1]) - 1e-9 or max(held) < 1.0


def test_one_way_alone_is_bounded_exactly_in_time() -> None:
    """A second way that is slower than the limit raises nothing where prices are fine enough."""
    prices = 2.0 ** np.arange(-3.0, 24.0)
    cost_s = np.array([[[min(1.0 + price * 8.0, 5.0 + price * 2.0)] for price in prices]])
    memory = PricedMemory(prices, np.array([1.0]), cost_s, np.ones(1), np.zeros(1))
    assert memory.least_bytes(10.0, 1.0)[0] == pytest.approx(2.0, rel=1e-6)
    assert memory.least_bytes(2.0, 1.0)[0] >= 6.0
    assert memory.least_bytes(1.0, 1.0)[0] == pytest.approx(8.0)


@pytest.mark.parametrize(("stages", "count", "runs"), [(2, 4, 2), (4, 8, 3), (4, 4, 2), (2, 7, 3), (4, 16, 4)])
def test_micro_batches_of_each_run_are_those_of_the_order(stages: int, count: int, runs: int) -> None:
    order = ORDERS["interleaved"](pipeline(list(range(1, stages * runs + 1)), count, stages))
    for stage, tasks in enumerate(order):
        held = [0] * runs
        for task in tasks:
            if task.kind != "forward":
                break
            held[task.run // stages] += 1
        assert in_flight_by_run(stage, stages, count, runs) == held
