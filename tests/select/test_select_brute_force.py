"""Every method that claims an optimum agrees with enumeration, on problems of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from select_oracle import enumerate_optimum, random_problem

from meshwright.select import InfeasibleError, Problem, solve
from meshwright.select.methods import auto


def optimum(problem: Problem, method: str) -> float:
    try:
        selection = solve(problem, seconds=20, method=method)
    except InfeasibleError:
        return np.inf
    assert selection.feasible
    assert selection.gap < 1e-6
    assert problem.total_cost(selection.choice) == selection.cost
    return selection.cost


def disagreements(seeds: range, method: str, **kwargs: object) -> list[tuple[int, float, float]]:
    found = []
    for seed in seeds:
        problem = random_problem(seed, **kwargs)  # type: ignore[arg-type]
        want, got = enumerate_optimum(problem), optimum(problem, method)
        if not (want == got or abs(want - got) < 1e-6):
            found.append((seed, want, got))
    return found


@pytest.mark.parametrize("seeds", [range(300), pytest.param(range(300, 2200), marks=pytest.mark.full)])
def test_auto_agrees_with_enumeration(seeds: range) -> None:
    assert disagreements(seeds, "auto") == []


@pytest.mark.parametrize("seeds", [range(3000, 3400), pytest.param(range(3400, 4000), marks=pytest.mark.full)])
def test_reductions_and_core_agree_with_enumeration(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with the shortcut for small problems barred, so that reductions, elimination and HiGHS all have to
    work.
    """
    monkeypatch.setattr(auto, "QUICK_NODES", 0)
    assert disagreements(seeds, "auto") == []


def test_ilp_agrees_with_enumeration() -> None:
    assert disagreements(range(2000, 2300), "ilp") == []


@pytest.mark.full
@pytest.mark.parametrize("method", ["auto", "ilp"])
def test_agreement_on_many_more(method: str) -> None:
    assert disagreements(range(10_000, 14_000), method) == []


@pytest.mark.full
def test_elimination_agrees_with_enumeration_where_there_are_no_rows() -> None:
    assert disagreements(range(20_000, 22_000), "elimination", rows=0) == []


def test_the_kinds_are_all_there() -> None:
    """The oracle is worth its name: feasible, infeasible, binding and idle rows all occur."""
    problems = [random_problem(seed) for seed in range(200)]
    costs = [enumerate_optimum(p) for p in problems]
    free = [enumerate_optimum(Problem(**{**vars_of(p), "limits": np.full(len(p.limits), np.inf)})) for p in problems]
    assert sum(np.isinf(c) for c in costs) > 10
    assert sum(np.isfinite(c) and c > f for c, f in zip(costs, free, strict=True)) > 10
    assert sum(c == f for c, f in zip(costs, free, strict=True)) > 50


def vars_of(problem: Problem) -> dict[str, object]:
    return {name: getattr(problem, name) for name in problem.__dataclass_fields__}
