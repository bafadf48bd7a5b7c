"""Fusion finds the best mixture of choices, and frees the search where small moves do not."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from select_oracle import random_problem

from meshwright.select import Problem, ProblemBuilder
from meshwright.select.budget import Best, Budget
from meshwright.select.fusion import Fusion, fuse, restrict


def choices(problem: Problem, count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, np.diff(problem.offsets)) for _ in range(count)]


def mixtures(found: list[np.ndarray]) -> list[tuple[int, ...]]:
    return list(product(*({int(one) for one in column} for column in np.stack(found).T)))


@pytest.mark.parametrize("seed", range(20))
def test_a_restricted_problem_has_the_costs_and_rows_of_its_mixtures(seed: int) -> None:
    problem = random_problem(seed)
    small = restrict(problem, choices(problem, 2, seed))
    shift = None
    for picked in product(*(range(small.problem.options(i)) for i in range(small.problem.nodes))):
        whole = small.invert(picked)
        cost, part = problem.total_cost(whole), small.problem.total_cost(picked)
        room, left = problem.limits - problem.row_usage(whole), small.problem.limits - small.problem.row_usage(picked)
        assert np.isinf(cost) >= np.isinf(part)
        assert room == pytest.approx(left)
        if np.isfinite(cost):
            shift = cost - part if shift is None else shift
            assert cost - part == pytest.approx(shift)


def test_without_rows_the_best_mixture_is_found() -> None:
    compared = 0
    for seed in range(40):
        problem = random_problem(seed, rows=0)
        pool = [one for one in choices(problem, 40, seed) if np.isfinite(problem.total_cost(one))][:3]
        if len(pool) < 2:
            continue  # random choices meet forbidden pairs
        best = Best(problem, Budget(seconds=60, work=100.0), 0.0, pool[0], problem.total_cost(pool[0]))
        fuse(best, pool[1:])
        assert best.cost == pytest.approx(min(problem.total_cost(one) for one in mixtures(pool)))
        assert best.cost == pytest.approx(problem.total_cost(best.choice))
        compared += 1
    assert compared > 20


def two_halves(limit: float = np.inf) -> Problem:
    """A ring whose halves each have an option 0 and an option 1; neighbours that differ pay."""
    build = ProblemBuilder()
    row = build.row(limit)
    for i in range(12):
        node = build.node([0.0, 5.0] if i < 6 else [5.0, 0.0])
        build.use(row, node, 1, 1.0)
    for i in range(12):
        build.edge(i, (i + 1) % 12, [[0.0, 7.0], [7.0, 0.0]])
    return build.build()


def test_halves_that_are_well_chosen_in_different_choices_are_joined() -> None:
    problem = two_halves()
    best = Best(problem, Budget(seconds=60, work=100.0), 0.0, np.zeros(12, dtype=np.int64), 30.0)
    fuse(best, [np.ones(12, dtype=np.int64)])
    assert best.cost == 14.0
    assert best.choice.tolist() == [0] * 6 + [1] * 6


def test_a_mixture_keeps_to_the_rows() -> None:
    problem = two_halves(limit=4.0)
    best = Best(problem, Budget(seconds=60, work=100.0), 0.0, np.zeros(12, dtype=np.int64), 30.0)
    fuse(best, [np.ones(12, dtype=np.int64)])
    assert problem.feasible(best.choice)
    assert best.cost == 24.0  # four of the six, and both ends of them


def test_as_much_is_left_to_the_search_as_fusion_takes_and_more_where_it_finds_nothing() -> None:
    problem = two_halves()
    budget = Budget(seconds=60, work=100.0)
    fusion = Fusion(Best(problem, budget, 0.0, np.zeros(12, dtype=np.int64), 30.0))
    fusion([np.ones(12, dtype=np.int64)])
    taken = budget.spent
    assert taken > 0
    fusion([np.ones(12, dtype=np.int64)])
    assert budget.spent == taken
    for pause in (taken, 2 * taken, 4 * taken):
        assert fusion.pause == pytest.approx(pause)
        budget.spent += pause
        fusion([np.ones(12, dtype=np.int64)])
        fusion([np.ones(12, dtype=np.int64)])
