"""Tables over kept nodes equal enumeration, and the choice read back costs what the table says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from meshwright.errors import ProblemError
from meshwright.select import Problem, ProblemBuilder
from meshwright.select.dominance import undominated
from meshwright.select.tables import tables


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


@pytest.mark.parametrize("seed", range(60))
def test_dropping_dominated_options_leaves_the_optimum(seed: int) -> None:
    problem = random_problem(seed)
    remaining = undominated(problem)
    everything = [range(problem.options(node)) for node in range(problem.nodes)]
    best = min(problem.total_cost(choice) for choice in product(*everything))
    left = min(problem.total_cost(choice) for choice in product(*(options.tolist() for options in remaining)))
    assert left == pytest.approx(best)


def test_an_option_that_never_pays_is_dropped() -> None:
    build = ProblemBuilder()
    a, b = build.node([1.0, 5.0, 0.0]), build.node([0.0, 0.0])
    build.edge(a, b, [[0.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    assert [options.tolist() for options in undominated(build.build())] == [[0, 2], [0, 1]]
