"""The parts behind the reductions: elimination, bounds, forests, HiGHS beside the search, limits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from select_oracle import enumerate_best, enumerate_optimum, random_problem

from meshwright.select import Problem, ProblemBuilder, elimination, large, narrow, solve
from meshwright.select.budget import Best, Budget
from meshwright.select.child import SOLVED, Child
from meshwright.select.dual import Ascent
from meshwright.select.kernels import rows
from meshwright.select.kernels.arrays import lay_out
from meshwright.select.kernels.forest import grow, new_forest, release
from meshwright.select.model import columns_of, formulate


def feasible_problems(seeds: range, **kwargs: int) -> list[Problem]:
    problems = [random_problem(seed, **kwargs) for seed in seeds]  # type: ignore[arg-type]
    return [p for p in problems if np.isfinite(enumerate_optimum(p)) and np.isfinite(p.limits).all()]


def grid(side: int, options: int, *, limit: float, seed: int = 0) -> Problem:
    """A grid is too wide for elimination when its side and options are many: the search has to work."""
    rng = np.random.default_rng(seed)
    build = ProblemBuilder()
    build.row(limit)
    for _ in range(side * side):
        size = rng.integers(1, 50, options).astype(float)
        node = build.node(np.round(1000 / size))
        for option in range(options):
            build.use(0, node, option, size[option])
    for i in range(side * side):
        if i % side + 1 < side:
            build.edge(i, i + 1, rng.integers(0, 40, (options, options)).astype(float))
        if i + side < side * side:
            build.edge(i, i + side, rng.integers(0, 40, (options, options)).astype(float))
    return build.build()


def test_elimination_gives_up_beyond_the_entries_it_may_take() -> None:
    with pytest.raises(elimination.TooWideError):
        elimination.plan(grid(8, 4, limit=1.0), most=10_000)


def test_message_passing_never_bounds_above_the_optimum() -> None:
    tight = 0
    for problem in feasible_problems(range(60)):
        ascent = Ascent(lay_out(problem))
        for _ in range(30):
            ascent.step()
        best = enumerate_optimum(problem)
        assert ascent.bound <= best + 1e-9 * abs(best)
        tight += ascent.bound > 0.9 * best
    assert tight > 10


def test_narrow_encloses_the_optimum_when_rows_bind() -> None:
    for problem in feasible_problems(range(200, 320)):
        best = Best(problem, Budget(seconds=60, work=100.0), 0.0, np.zeros(problem.nodes, dtype=np.int64))
        assert narrow.solve(best, [])
        optimum = enumerate_optimum(problem)
        assert best.bound <= optimum + 1e-6
        assert best.cost >= optimum


def test_a_forest_is_one_whatever_the_random_numbers() -> None:
    a = lay_out(grid(6, 2, limit=1e9))
    f = new_forest(a)
    for seed in range(20):
        rand = np.random.default_rng(seed).random(2000)
        count, _ = grow(a, f, 30, 1 + seed % 3, rand, 0)
        picked = set(f.nodes[:count].tolist())
        inner = sum(int(j) in picked for i in picked for j in a.near[a.start[i] : a.start[i + 1]]) // 2
        roots = int((f.link[:count] < 0).sum())
        assert count > 0
        assert inner == count - roots  # as many edges as a forest has
        release(a, f, count)
        assert not f.touch.any()
        assert (f.place == -1).all()


def test_usage_and_cost_in_kernels_are_those_of_the_problem() -> None:
    for problem in feasible_problems(range(50), rows=3):
        a = lay_out(problem)
        _, choice = enumerate_best(problem)
        usage = np.zeros(len(problem.limits))
        rows.fill_usage(a, np.array(choice), usage)
        assert usage == pytest.approx(problem.row_usage(choice))
        assert rows.total_cost(a, np.array(choice)) == pytest.approx(problem.total_cost(choice))


def chain_of_layouts(nodes: int, options: int, layouts: int, seed: int = 0) -> Problem:
    """Edges see the layouts of options only: few of them, and every edge the same prices."""
    rng = np.random.default_rng(seed)
    build = ProblemBuilder()
    layout = [rng.integers(0, layouts, options) for _ in range(2)]
    prices = rng.integers(0, 40, (layouts, layouts)).astype(float)
    for i in range(nodes):
        build.node(rng.integers(0, 40, options).astype(float))
        if i:
            build.edge(i - 1, i, prices[np.ix_(layout[(i - 1) % 2], layout[i % 2])])
    return build.build()


def test_kernels_work_on_classes_of_options_and_equal_edges_share_a_matrix() -> None:
    problem = chain_of_layouts(12, 60, 4)
    a = lay_out(problem)
    assert len(a.mats) <= 2 * 2 * 4 * 4  # two kinds of edge, either way
    ascent = Ascent(a)
    for _ in range(30):
        steps = ascent.step()
    assert steps < len(problem.edge_costs) // 2
    best = solve(problem, method="elimination").cost
    assert ascent.bound == pytest.approx(best)  # message passing is exact on a chain
    assert problem.total_cost(ascent.x) == pytest.approx(best)
    assert rows.total_cost(a, ascent.x) == pytest.approx(best)


@pytest.mark.full
def test_the_search_for_large_cores_is_feasible_and_close_to_its_bound() -> None:
    problem = grid(9, 4, limit=1500.0)
    best = Best(problem, Budget(seconds=60, work=30.0), 0.0, np.zeros(problem.nodes, dtype=np.int64))
    large.solve(best, 0, [])
    assert problem.feasible(best.choice)
    assert best.bound <= best.cost <= 1.05 * best.bound


@pytest.mark.full
def test_the_same_work_and_seed_give_the_same_choice_on_a_large_core() -> None:
    problem = grid(16, 6, limit=5000.0)
    first, second = (solve(problem, work=20.0, seed=3) for _ in range(2))
    assert first.feasible
    assert (first.choice, first.bound) == (second.choice, second.bound)


def test_a_child_process_solves_and_can_be_killed() -> None:
    problem = grid(4, 3, limit=350.0)
    with Child(problem, gap=0.0) as child:
        news = []
        while child.ended is None:
            news += child.news(wait_s=1.0)
    assert child.ended == SOLVED
    choices = [choice for _, choice in news if choice is not None]
    bounds = [bound for bound, _ in news if bound is not None]
    assert problem.total_cost(choices[-1]) == pytest.approx(max(bounds))
    began = time.perf_counter()
    with Child(grid(20, 8, limit=9000.0), gap=0.0):
        pass
    assert time.perf_counter() - began < 10


@pytest.mark.full
def test_a_solve_ends_in_time_and_its_gap_is_true() -> None:
    solve(grid(5, 3, limit=500.0), seconds=4)  # kernels are compiled, which a new machine takes long for
    problem = grid(14, 8, limit=4000.0)
    began = time.perf_counter()
    selection = solve(problem, seconds=4, gap=0.002)
    assert time.perf_counter() - began < 60  # a loaded machine starts processes slowly
    assert selection.feasible
    assert selection.bound <= selection.cost
    assert selection.gap == pytest.approx((selection.cost - selection.bound) / selection.cost)


def test_progress_only_gets_better() -> None:
    seen = []
    solve(grid(8, 4, limit=1300.0), seconds=5, gap=0.01, on_progress=seen.append)
    assert seen
    assert all(b.cost <= a.cost and b.bound >= a.bound for a, b in pairwise(seen))


def test_a_choice_is_a_point_of_the_integer_program_with_its_cost() -> None:
    for problem in feasible_problems(range(60)):
        model = formulate(problem, np.arange(len(problem.limits)))
        cost, choice = enumerate_best(problem)
        point = columns_of(model, problem, np.array(choice))
        finite = np.where(np.isfinite(model.cost), model.cost, 0.0)
        assert finite @ point == pytest.approx(cost)
        for i in range(len(model.lower)):
            part = slice(model.start[i], model.start[i + 1])
            value = model.value[part] @ point[model.index[part]]
            assert model.lower[i] - 1e-9 <= value <= model.upper[i] + 1e-9


@pytest.mark.full
def test_without_numba_everything_still_works() -> None:
    """Kernels run as plain Python in a process where numba is switched off, and take the same path."""
    script = "\n".join(
        [
            "import sys; sys.path[:0] = sys.argv[1:]",
            "from test_select_engine import grid",
            "from meshwright.select import solve",
            "from meshwright.select.kernels.jit import HAVE_NUMBA",
            "found = solve(grid(13, 4, limit=3000.0), work=3.0, seed=1)",
            "print(HAVE_NUMBA, found.feasible, found.cost)",
        ]
    )
    here = Path(__file__).parent
    words = [sys.executable, "-c", script, str(here), str(here.parents[1])]
    environment = {**os.environ, "MESHWRIGHT_NUMBA": "0"}
    answer = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    cost = solve(grid(13, 4, limit=3000.0), work=3.0, seed=1).cost
    assert answer.stdout.split() == ["False", "True", str(cost)]
