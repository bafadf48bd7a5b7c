"""The label-setting programme: optimal without a beam, never under its bound, for all its callers."""

from __future__ import annotations

from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.plan import Choice, FrontierPoint
from meshwright.planner.chain.chains import Chain, combine_chains
from meshwright.planner.chain.label_dp import LagrangianBound, Ways, label_dp
from meshwright.planner.sharding.model import Point

Figures = tuple[int, int, int, int]
"""Seconds; static, resident and transient bytes."""

figures = st.tuples(st.integers(1, 20), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
offers = st.tuples(st.integers(0, 1), st.integers(0, 1), st.lists(figures, min_size=1, max_size=3))
chains = st.lists(st.lists(offers, min_size=1, max_size=3), min_size=1, max_size=4)


def peak(picked: tuple[Figures, ...]) -> int:
    held, most = 0, 0
    for _, _, resident, transient in picked:
        held += resident
        most = max(most, held + transient)
    return sum(static for _, static, _, _ in picked) + most


def ways(index: int, one: int, other: int, found: list[Figures]) -> Ways:
    seconds, static, resident, transient = np.array(found, dtype=np.int64).T
    return Ways(seconds.astype(float), static, resident, transient, ((f"v{index}", one), (f"v{index + 1}", other)))


@settings(max_examples=200, deadline=None)
@given(chains, st.integers(0, 60))
def test_brute_force_over_all_choices(chain: list[list[Any]], budget: int) -> None:
    rows = [[ways(index, *offer) for offer in here] for index, here in enumerate(chain)]
    times = [
        sum(figure[0] for figure in picked)
        for taken in product(*chain)
        if all(one[1] == other[0] for one, other in pairwise(taken))
        for picked in product(*(offer[2] for offer in taken))
        if peak(picked) <= budget
    ]
    bound = LagrangianBound(rows, budget)
    found = label_dp(rows, bound)
    assert (found is not None) == bool(times)
    if found is not None:
        picked = tuple(chain[i][offer][2][way] for i, (offer, way) in enumerate(found.picks))
        assert found.seconds == min(times) == sum(figure[0] for figure in picked)
        assert peak(picked) <= budget
        assert bound.seconds <= found.seconds * (1 + 1e-9)
        assert label_dp(rows, bound, found.seconds) is None, "none is faster"
        narrow = label_dp(rows, bound, beam=2, slots=8)
        assert narrow is None or narrow.seconds >= found.seconds


@settings(max_examples=200, deadline=None)
@given(chains, st.integers(0, 60))
def test_the_bound_of_every_label_is_below_what_the_segments_before_it_take(
    chain: list[list[Any]], budget: int
) -> None:
    rows = [[ways(0, 0, 0, [figure for offer in here for figure in offer[2]])] for here in chain]
    bound = LagrangianBound(rows, budget)
    every = [[figure for offer in here for figure in offer[2]] for here in chain]
    for index in range(len(chain) + 1):
        for rest in product(*(here[:3] for here in every[index:])):
            static, total = sum(figure[1] for figure in rest), peak(rest)
            fitting = [
                sum(figure[0] for figure in first)
                for first in product(*every[:index])
                if peak((*first, *rest)) <= budget
            ]
            lower = float(bound.before(index, np.array([static]), np.array([total]))[0])
            assert lower <= min(fitting, default=np.inf) + 1e-9
            assert total <= bound.room_bytes[index] or not fitting


class Line:
    """Segments that hand one value each to the next."""

    def __init__(self, segments: int) -> None:
        self.setting = SimpleNamespace(microbatches=1)
        self.program = SimpleNamespace(segments=range(segments))

    def boundary(self, index: int) -> tuple[str, ...]:
        return (f"v{index}", f"v{index + 1}")


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(figures, min_size=n, max_size=n), min_size=2, max_size=4)))
def test_chains_are_combined_to_the_best_that_fits(drawn: list[list[Figures]]) -> None:
    """Brute force over all combinations of the chains' points, at the budget of every combination."""
    shardings: Any = Line(len(drawn[0]))
    made = [Chain(tuple(map(point, row)), ((0, 0),) * len(row), 1) for row in drawn]
    every = [
        Chain(picked, made[0].options, 1) for picked in product(*(zip(*(one.points for one in made), strict=True)))
    ]
    for budget in sorted({chain.peak_bytes for chain in every})[:8]:
        best = min(chain.seconds for chain in every if chain.peak_bytes <= budget)
        given_s = min((chain.seconds for chain in made if chain.peak_bytes <= budget), default=np.inf)
        found = combine_chains(shardings, made, budget)
        assert (found is not None) == (best < given_s)
        if found is not None:
            assert found.seconds == best
            assert found.peak_bytes <= budget


def point(figure: Figures) -> Point:
    seconds, *sizes = figure
    choice = Choice(0, (), (), {})
    return Point(FrontierPoint(choice, float(seconds), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, *sizes, 0), {})
