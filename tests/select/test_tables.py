"""Tables over kept nodes equal enumeration, and the choice read back costs what the table says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from meshwright.errors import ProblemError
from meshwright.select import Problem, ProblemBuilder
from meshwright.select.tables import tables, tables_plan


def random_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    build = ProblemBuilder()
    widths = rng.integers(1, 4, size=rng.integers(2, 7))
    for width in widths:
        build.node(np.where(rng.random(width) < 0.1, np.inf, rng.random(width)))
    for a, b in product(range(len(widths)), repeat=2):
        if a != b and rng.random() < 0.4:
            matrix = rng.random((widths[a], widths[b]))
            build.edge(a, b, np.where(rng.random(matrix.shape) < 0.15, np.inf, matrix))
    return build.build()


@pytest.mark.parametrize("seed", range(150))
def test_every_entry_is_the_best_completion(seed: int) -> None:
    problem = random_problem(seed)
    kept = list(range(problem.nodes))[:: 1 + seed % 3][:3]
    found = tables(problem, kept)
    best: dict[tuple[int, ...], float] = {}
    for choice in product(*(range(problem.options(node)) for node in range(problem.nodes))):
        key = tuple(choice[node] for node in kept)
        best[key] = min(best.get(key, np.inf), problem.total_cost(choice))
    for key, cost in best.items():
        assert found.costs[key] == pytest.approx(cost)
        if np.isfinite(cost):
            choice = found.choice(key)
            assert [choice[node] for node in kept] == list(key)
            assert problem.total_cost(choice) == pytest.approx(cost)


def test_a_combination_without_a_choice_is_refused() -> None:
    build = ProblemBuilder()
    a, b = build.node([0.0, 1.0]), build.node([0.0])
    build.edge(a, b, [[np.inf], [0.0]])
    found = tables(build.build(), [a])
    assert found.choice([1]) == [1, 0]
    with pytest.raises(ProblemError, match="finite cost"):
        found.choice([0])


def test_a_table_too_large_is_refused() -> None:
    build = ProblemBuilder()
    rng = np.random.default_rng(0)
    nodes = [build.node(np.zeros(10)) for _ in range(4)]
    for a, b in product(nodes, repeat=2):
        if a < b:
            build.edge(a, b, rng.random((10, 10)))
    with pytest.raises(ProblemError, match="10,000 entries"):
        tables(build.build(), [], most_entries=1000)


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_serves_any_node_costs(seed: int) -> None:
    problem = random_problem(seed)
    kept = list(range(problem.nodes))[: seed % 3]
    prepared = tables_plan(problem, kept)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        costs = rng.random(len(problem.costs)) * np.where(rng.random(len(problem.costs)) < 0.1, np.inf, 1.0)
        fresh = tables(replace(problem, costs=costs), kept)
        found = prepared.run(costs)
        assert found.costs == pytest.approx(fresh.costs)
        for key in np.argwhere(np.isfinite(found.costs)).tolist():
            assert replace(problem, costs=costs).total_cost(found.choice(key)) == pytest.approx(found.costs[tuple(key)])


@pytest.mark.parametrize("seed", range(40))
def test_tables_that_were_filled_before_serve_only_the_same_costs(seed: int) -> None:
    """Of the nodes that are said not to vary some do after all, in one run of two: their tables are filled again."""
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    kept, varying = [0], {node for node in range(problem.nodes) if rng.random() < 0.5}
    prepared = tables_plan(problem, kept, varying=varying)
    costs = problem.costs.copy()
    for run in range(6):
        for node in range(problem.nodes) if run % 2 else varying:
            own = slice(problem.offsets[node], problem.offsets[node + 1])
            costs[own] = rng.random(problem.options(node))
        found, priced = prepared.run(costs), replace(problem, costs=costs)
        assert found.costs == pytest.approx(tables(priced, kept).costs)
        for key in np.argwhere(np.isfinite(found.costs)).tolist():
            assert priced.total_cost(found.choice(key)) == pytest.approx(found.costs[tuple(key)])


def test_what_does_not_vary_is_filled_once() -> None:
    """A ladder in which one rung varies: the tables of the others go first, and stay as they are."""
    build = ProblemBuilder()
    rng = np.random.default_rng(0)
    left, right = ([build.node(rng.random(40)) for _ in range(7)] for _ in range(2))
    pairs = [*zip(left, right, strict=True), *pairwise(left), *pairwise(right)]
    for a, b in pairs:
        build.edge(a, b, rng.random((40, 40)))
    problem, varying = build.build(), {left[3], right[3]}
    usual, prepared = tables_plan(problem, []), tables_plan(problem, [], varying=varying)
    one, two = prepared.run(problem.costs), prepared.run(problem.costs + np.repeat([*[0] * 3, 1, *[0] * 10], 40))
    again = [a is not b for a, b in zip(one.filled.tables, two.filled.tables, strict=True)]
    filled = [step.node for step, new in zip(prepared.order.steps, again, strict=True) if new]
    assert varying <= set(filled)
    assert len(filled) <= 3
    assert prepared.entries <= usual.entries
    assert two.filled.value == pytest.approx(usual.run(two.filled.costs[: len(problem.costs)]).filled.value)


def test_costs_of_another_problem_are_refused() -> None:
    with pytest.raises(ProblemError, match="3 option costs"):
        tables_plan(random_problem(0), []).run(np.zeros(3))


@pytest.mark.parametrize("seed", range(60))
def test_several_vectors_of_costs_have_the_least_totals_of_each_alone(seed: int) -> None:
    """Some differ at all nodes, some at a few that vary, some not at all; of one problem tables are large."""
    problem = large_problem() if seed == 0 else random_problem(seed)
    rng = np.random.default_rng(seed)
    varying = {node for node in range(problem.nodes) if rng.random() < 0.5}
    last = slice(problem.offsets[problem.nodes - 1], None)
    costs = np.tile(problem.costs, (8, 1))
    for node in varying:
        own = slice(problem.offsets[node], problem.offsets[node + 1])
        costs[1:4, own] = rng.random((3, own.stop - own.start))
    costs[4:6, last] += rng.random((2, 1))
    costs[6] += rng.random(len(problem.costs))
    plan = tables_plan(problem, [], varying=varying)
    alone = [float(plan.run(one).costs) for one in costs]
    assert plan.least_of_each(costs) == pytest.approx(alone, rel=1e-12)


def large_problem() -> Problem:
    """Tables of more entries than are filled at once for several vectors."""
    rng = np.random.default_rng(0)
    build = ProblemBuilder()
    nodes = [build.node(rng.random(40)) for _ in range(4)]
    for a, b in product(nodes, repeat=2):
        if a < b:
            build.edge(a, b, rng.random((40, 40)))
    return build.build()
