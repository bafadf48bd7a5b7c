"""Elimination by classes, sparse steps and two-step tables gives what enumeration gives."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from select_oracle import enumerate_optimum, random_problem

from meshwright.select import Problem, ProblemBuilder, elimination
from meshwright.select.elimination import dense, descent, order, ordering, sparse
from meshwright.select.elimination.views import Views


@pytest.fixture(
    params=["as it is", "every step sparse", "every table in two", "class by class", "every order improved"]
)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The thresholds that decide how a step is done, set so that small problems see every way."""
    if request.param == "every step sparse":
        monkeypatch.setattr(order, "SMALL", 0)
        monkeypatch.setattr(order, "SPARSE", 2.0)
    if request.param == "every table in two":
        monkeypatch.setattr(ordering, "LARGE", 0)
        monkeypatch.setattr(ordering, "WORTH", 10.0)
        monkeypatch.setattr(order, "SMALL", 0)
    if request.param == "class by class":
        monkeypatch.setattr(dense, "WHOLE", 0)
        monkeypatch.setattr(sparse, "WHOLE", 0)
        monkeypatch.setattr(order, "SMALL", 0)
    if request.param == "every order improved":
        monkeypatch.setattr(descent, "ENOUGH", 1)
        monkeypatch.setattr(order, "_prepared", partial(improving, order._prepared))
    name: str = request.param
    return name


def improving(prepared: Any, *given: Any, improve: bool) -> Any:
    return prepared(*given, improve=True)


def copies(seed: int) -> Problem:
    """Makers, sets of one or two layouts, readers that want one of them: few classes, many forbidden pairs."""
    rng = np.random.default_rng(seed)
    build = ProblemBuilder()
    layouts = 3
    sets = [(0,), (1,), (2,), (0, 1), (1, 2)]
    member = np.array([[i in group for i in range(layouts)] for group in sets])
    ops = [build.node(np.round(rng.random(4), 2)) for _ in range(int(rng.integers(2, 5)))]
    for maker in range(int(rng.integers(1, 3))):
        node = build.node(np.zeros(len(sets)))
        build.edge(ops[maker], node, rng.random((4, layouts))[rng.integers(0, 4, 4)] @ member.T)
        for reader in ops[maker + 1 :]:
            build.edge(node, reader, np.where(member[:, rng.integers(0, layouts, 4)], 0.0, np.inf))
    return build.build()


@cache
def enumerated(seed: int) -> list[tuple[Problem, float]]:
    return [(problem, enumerate_optimum(problem)) for problem in (random_problem(seed, rows=0), copies(seed))]


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 120), marks=pytest.mark.full)])
def test_the_value_is_the_optimum_and_the_choice_attains_it(seeds: range, way: str) -> None:
    for problem, best in (one for seed in seeds for one in enumerated(seed)):
        filled = elimination.plan(problem).run(problem.costs)
        assert filled.value == pytest.approx(best)
        if np.isfinite(best):
            assert problem.total_cost(filled.choice()) == pytest.approx(best)


def test_the_ways_are_taken() -> None:
    """On a problem of copies larger than the thresholds, sparse steps, dense ones and stand-ins all occur."""
    rng = np.random.default_rng(0)
    build = ProblemBuilder()
    layouts = 30
    pairs = [(i,) for i in range(layouts)] + [(i, (i + k) % layouts) for i in range(layouts) for k in (1, 2, 3)]
    member = np.array([[i in group for i in range(layouts)] for group in pairs])
    ops = [build.node(rng.random(40)) for _ in range(8)]
    for a, b in ((0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7)):
        build.edge(ops[a], ops[b], rng.random((40, 40)))
    for readers in ((1, 4, 6), (2, 5, 7)):
        node = build.node(np.zeros(len(pairs)))
        build.edge(ops[0], node, rng.random((40, layouts)) @ member.T)
        for reader in readers:
            build.edge(node, ops[reader], np.where(member[:, rng.integers(0, layouts, 40)], 0.0, np.inf))
    problem = build.build()
    prepared = elimination.plan(problem)
    kinds = {type(step).__name__ for step in prepared.steps}
    assert kinds == {"DenseStep", "SparseStep"}
    assert len(prepared.steps) > problem.nodes, "some node had a stand-in"
    filled = prepared.run(problem.costs)
    assert problem.total_cost(filled.choice()) == pytest.approx(filled.value)


def test_no_choice_at_all_is_an_infinite_value() -> None:
    build = ProblemBuilder()
    a, b, c = (build.node([0.0, 1.0]) for _ in range(3))
    differ = [[np.inf, 0.0], [0.0, np.inf]]
    for pair in ((a, b), (b, c), (a, c)):
        build.edge(*pair, differ)
    problem = build.build()
    for kept in ((), (a,), (a, b)):
        assert np.isinf(elimination.plan(problem, kept).run(problem.costs).least).all()


def test_a_join_tells_apart_what_either_view_does() -> None:
    views = Views()
    one, two = views.by("aabb"), views.by("xyxy")
    both = views.join(one, two)
    assert both.size == 4
    assert views.join(one, one) is one
    assert views.translation(both, one).tolist() == [0, 0, 1, 1]
    assert views.by([7, 7, 3, 3]) is one
