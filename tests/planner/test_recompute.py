"""Keeping and recomputing is solved exactly: brute force over all kept sets, on graphs with every kind of storage."""

from __future__ import annotations

from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.remat.recompute import Answer, Recomputation, Rerun, Storage, cheapest, evaluate, frontier


@st.composite
def problems(draw: st.DrawFn) -> Recomputation:
    """Inputs, random masks, ops of one or two results, storages that are written to, several readers in backward."""
    storages = [Storage(f"input{i}", draw(st.integers(0, 9))) for i in range(draw(st.integers(1, 2)))]
    ops: list[Rerun] = []
    for index in range(draw(st.integers(1, 5))):
        reads = draw(st.sets(st.integers(0, len(storages) - 1), min_size=1, max_size=3))
        ops.append(Rerun(draw(st.integers(0, 9)), tuple(sorted(reads))))
        for part in range(draw(st.integers(1, 2))):
            kind = draw(st.sampled_from(["plain", "plain", "plain", "random", "written"]))
            made_by = None if kind == "random" else index
            size = draw(st.integers(0, 9))
            storages.append(Storage(f"value{index}.{part}", size, made_by, kind != "written"))
    read = draw(st.sets(st.integers(0, len(storages) - 1), min_size=1, max_size=5))
    found = Recomputation(tuple(storages), tuple(ops), frozenset(read))
    found.verify()
    return found


def every(problem: Recomputation) -> list[Answer]:
    indices = range(len(problem.storages))
    subsets = chain.from_iterable(combinations(indices, size) for size in range(len(indices) + 1))
    found = (evaluate(problem, subset) for subset in subsets)
    return [answer for answer in found if answer is not None]


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 20), st.integers(0, 20))
def test_the_cut_is_the_minimum_over_all_kept_sets(problem: Recomputation, per_second: int, per_byte: int) -> None:
    def cost(answer: Answer) -> int:
        return per_second * answer.picoseconds + per_byte * answer.bytes

    assert cost(cheapest(problem, per_second, per_byte)) == min(map(cost, every(problem)))


@settings(max_examples=100, deadline=None)
@given(problems())
def test_the_frontier_is_the_lower_hull_of_all_kept_sets(problem: Recomputation) -> None:
    answers = every(problem)
    points = frontier(problem)
    fastest = min(answers, key=lambda a: (a.picoseconds, a.bytes))
    smallest = min(answers, key=lambda a: (a.bytes, a.picoseconds))
    assert (points[0].bytes, points[0].picoseconds) == (fastest.bytes, fastest.picoseconds)
    assert (points[-1].bytes, points[-1].picoseconds) == (smallest.bytes, smallest.picoseconds)
    for left, right in pairwise(points):
        assert right.bytes < left.bytes
        for answer in answers:
            # Twice the area of (left, right, answer): none lies below the line.
            run, rise = left.bytes - right.bytes, right.picoseconds - left.picoseconds
            assert run * (answer.picoseconds - left.picoseconds) >= rise * (left.bytes - answer.bytes)


def test_an_op_that_runs_again_restores_all_its_results() -> None:
    storages = (Storage("x", 1), Storage("out", 10, 0), Storage("statistics", 10, 0))
    problem = Recomputation(storages, (Rerun(5, (0,)),), frozenset({1, 2}))
    found = evaluate(problem, {0, 1})
    assert found is not None
    assert (found.kept, found.bytes, found.picoseconds) == (frozenset({0}), 1, 5)


def test_what_nothing_can_make_is_kept_at_any_price() -> None:
    storages = (Storage("x", 100), Storage("y", 100, 0))
    problem = Recomputation(storages, (Rerun(1, (0,)),), frozenset({1}))
    assert cheapest(problem, 1, 10**9).bytes == 100
    assert evaluate(problem, ()) is None


@pytest.mark.parametrize("length", [60])
def test_a_long_chain_is_solved_at_every_price(length: int) -> None:
    """Of a chain in which each value is twice as dear to remake as the one before, prices pick a prefix."""
    storages = [Storage("x", 1)] + [Storage(f"v{i}", 1000 + i, i) for i in range(length)]
    ops = tuple(Rerun(1 + i, (i,)) for i in range(length))
    problem = Recomputation(tuple(storages), ops, frozenset(range(length + 1)))
    points = frontier(problem)
    assert points[0].picoseconds == 0
    assert points[-1].bytes == 1
    assert len(points) > length // 2
