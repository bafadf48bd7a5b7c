"""The survey's methods return choices that hold what they say; those that prove something prove the truth."""

from __future__ import annotations

import numpy as np
import pytest
from select_oracle import enumerate_optimum, random_problem

from meshwright.errors import ProblemError
from meshwright.select import METHODS, InfeasibleError, ProblemBuilder, solve

SEEDS = [s for s in range(300, 420) if np.isfinite(enumerate_optimum(random_problem(s)))][:12]


@pytest.mark.parametrize("method", METHODS)
def test_cost_and_bound_enclose_the_optimum(method: str) -> None:
    found = 0
    for seed in SEEDS:
        problem = random_problem(seed)
        best = enumerate_optimum(problem)
        selection = solve(problem, seconds=100, work=3.0, method=method, seed=seed)
        assert selection.bound <= best + 1e-6
        if selection.feasible:
            found += 1
            assert problem.feasible(selection.choice)
            assert selection.cost >= best - 1e-6
        else:
            assert selection.over[1] > 0 or not np.isfinite(selection.cost)
    assert found >= len(SEEDS) // 2


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_and_work_give_the_same_choice(method: str) -> None:
    problem = random_problem(SEEDS[3])
    first, second = (solve(problem, work=0.5, method=method, seed=7).choice for _ in range(2))
    assert first == second


def test_elimination_is_exact_without_rows() -> None:
    for seed in range(500, 700):
        problem = random_problem(seed, rows=0)
        best = enumerate_optimum(problem)
        if np.isinf(best):
            with pytest.raises(InfeasibleError):
                solve(problem, work=1.0, method="elimination")
            continue
        selection = solve(problem, work=1.0, method="elimination")
        assert (selection.cost, selection.gap) == (best, 0.0)


def test_an_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(ProblemError, match="'simplex'"):
        solve(random_problem(0), method="simplex")


def test_infeasible_problems_are_proven_so() -> None:
    tight = [s for s in range(800, 1000) if not np.isfinite(enumerate_optimum(random_problem(s)))]
    assert len(tight) > 20
    for seed in tight[:30]:
        with pytest.raises(InfeasibleError):
            solve(random_problem(seed), seconds=10)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_problem_that_only_forbidden_pairs_make_impossible_is_proven_so(rows: int) -> None:
    """Four nodes, each pair different, three colours: every option has partners, no choice exists."""
    build = ProblemBuilder()
    for _ in range(rows):
        build.row(3.0)
    for _ in range(4):
        node = build.node([0.0, 1.0, 2.0])
        for option in range(3 * rows):
            build.use(0, node, option, float(option == 1))
    different = np.where(np.eye(3, dtype=bool), np.inf, 0.0)
    for a in range(4):
        for b in range(a):
            build.edge(a, b, different)
    for method in ("auto", "ilp"):
        with pytest.raises(InfeasibleError):
            solve(build.build(), seconds=10, method=method)
