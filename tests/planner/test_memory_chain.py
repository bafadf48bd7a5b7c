"""A choice per instance under the true peak: brute force, the published shape of answers, and speed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.memory.instances import Instance, least_peak_bytes, peak_of, solve_instances


@dataclass(frozen=True)
class Way:
    resident_bytes: int
    seconds: float
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0


ways = st.builds(Way, st.integers(0, 9), st.integers(1, 20), st.integers(0, 9), st.integers(0, 9))
instances = st.builds(Instance, st.lists(ways, min_size=1, max_size=4), st.integers(0, 4))


@settings(max_examples=200, deadline=None)
@given(st.lists(instances, min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 60))
def test_brute_force_over_all_choices(chain: list[Instance], static: int, budget: int) -> None:
    every = list(product(*(range(len(instance.options)) for instance in chain)))
    fitting = [choice for choice in every if peak_of(chain, choice, static) <= budget]
    found = solve_instances(chain, budget, static)
    assert (found is not None) == bool(fitting)
    assert least_peak_bytes(chain, static) == min(peak_of(chain, choice, static) for choice in every)
    if found is not None:
        times = [sum(i.options[o].seconds for i, o in zip(chain, choice, strict=True)) for choice in fitting]
        assert found.seconds == min(times)
        assert found.peak_bytes == peak_of(chain, found.options, static) <= budget
        assert found.bound_s <= found.seconds


def test_some_of_many_alike_recompute() -> None:
    layer = (Way(100, 1.0), Way(10, 1.3))
    chain = [Instance(layer)] * 32
    found = solve_instances(chain, 32 * 100 - 7 * 90)
    assert found is not None
    assert sum(found.options) == 7
    assert found.seconds == pytest.approx(32 + 7 * 0.3)


def test_gradients_come_while_activations_go() -> None:
    """The last backward has all gradients and one segment's activations, the first all activations and no gradient."""
    chain = [Instance((Way(10, 1.0),), 10)] * 4
    assert peak_of(chain, [0] * 4, 5) == 5 + 40
    found = solve_instances(chain, 45, 5)
    assert found is not None
    assert solve_instances(chain, 44, 5) is None


def test_a_deep_chain_of_many_ways_takes_under_a_second() -> None:
    """126 layers with 20 ways each; every budget in between is met exactly and less memory is never faster."""
    gib = 1 << 30
    curve = [
        Way(2 * gib - i * 96_000_017, 0.0158 + 2.6e-5 * i * i, gib // 4 + i * gib // 32, gib // 2 + i * gib // 16)
        for i in range(20)
    ]
    ends = (Way(gib // 1024, 0.001, gib // 10, gib // 10),)
    chain = [Instance(ends, gib), *[Instance(curve, gib // 10)] * 126, Instance(ends, gib)]
    least, most = least_peak_bytes(chain, 10 * gib), peak_of(chain, [0] * len(chain), 10 * gib)
    before, last = time.process_time(), float("inf")
    shares = (0.0, 0.3, 0.6, 1.0)
    for share in shares:
        found = solve_instances(chain, int(least + share * (most - least)), 10 * gib)
        assert found is not None
        assert found.bound_s <= found.seconds < last
        assert found.bound_s > 0.99 * found.seconds
        last = found.seconds
    assert (time.process_time() - before) / len(shares) < 4, "0.2 s on a quick machine"
