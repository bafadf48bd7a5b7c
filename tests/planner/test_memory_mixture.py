"""Mixtures of shardings and of what is kept: they fit under the true peak, and brute force is no faster."""

from __future__ import annotations

from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.plan import Choice, FrontierPoint
from meshwright.planner.chain.remat_chain import SegmentOffer, combine_offers

CHOICE = Choice(0, (), (), {})
BUDGET = 60


def way(seconds: int, static: int, resident: int, transient: int) -> FrontierPoint:
    return FrontierPoint(CHOICE, float(seconds), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, static, resident, transient, 0)


ways = st.builds(way, st.integers(1, 20), st.integers(0, 12), st.integers(0, 12), st.integers(0, 9))
offers = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.lists(ways, min_size=1, max_size=3)), min_size=1, max_size=3
)


class Chained:
    """Segments that hand one value each to the next."""

    def __init__(self, segments: int) -> None:
        self.setting = SimpleNamespace(microbatches=1)
        self.program = SimpleNamespace(segments=range(segments))

    def boundary(self, index: int) -> tuple[str, ...]:
        return (f"v{index}", f"v{index + 1}")


@settings(max_examples=150, deadline=None)
@given(st.lists(offers, min_size=1, max_size=4))
def test_the_fastest_mixture_of_neighbours_that_agree(drawn: list[Any]) -> None:
    found = [[SegmentOffer((a, b), object(), tuple(kept)) for a, b, kept in here] for here in drawn]  # type: ignore[arg-type]
    best: dict[tuple[int, ...], int] = {}
    for picks in product(*(range(len(here)) for here in found)):
        taken = [here[pick] for here, pick in zip(found, picks, strict=True)]
        if all(one.options[1] == other.options[0] for one, other in pairwise(taken)):
            times = [
                sum(int(kept.forward_s) for kept in every)
                for every in product(*(offer.ways for offer in taken))
                if peak(every) <= BUDGET
            ]
            if times:
                best[picks] = min(times)
    mixed = combine_offers(Chained(len(found)), found, BUDGET, float("inf"), 0.0)  # type: ignore[arg-type]
    assert (mixed is not None) == bool(best)
    if mixed is not None:
        picked = tuple(
            next(i for i, offer in enumerate(here) if offer.sharding is point)
            for here, point in zip(found, mixed.chain.points, strict=True)
        )
        assert best[picked] == min(best.values()) == mixed.seconds
        assert mixed.peak_bytes <= BUDGET


def peak(every: tuple[FrontierPoint, ...]) -> int:
    held, most = 0, 0
    for kept in every:
        held += kept.resident_bytes
        most = max(most, held + kept.transient_bytes)
    return sum(kept.static_bytes for kept in every) + most
