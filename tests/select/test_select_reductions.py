"""Every reduction keeps the optimum: what is left, enumerated, plus the constant is the optimum there was, and
`restore` attains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from select_oracle import enumerate_best, enumerate_optimum, random_problem

from meshwright.select import InfeasibleError, Problem, ProblemBuilder, solve
from meshwright.select.flatten import flatten
from meshwright.select.graph import Graph
from meshwright.select.ilp import branch_and_bound
from meshwright.select.reductions import (
    compact,
    components,
    contract,
    dominate,
    eliminate,
    fixpoint,
    fold,
    forbid,
    parts,
    reduce,
    rows,
    separate,
    twins,
)


def normalise(graph: Graph) -> None:
    for node in graph.nodes():
        rows.normalise(graph, node)


def apply_forbid(graph: Graph) -> int:
    normalise(graph)
    before = options(graph)
    for node in graph.nodes():
        forbid.by_cost(graph, node)
        for other in list(graph.adj[node]):
            forbid.by_edge(graph, node, other)
        forbid.by_rows(graph, node)
    return before - options(graph)


def apply_fold(graph: Graph) -> int:
    single = [node for node in graph.nodes() if len(graph.cost[node]) == 1]
    for node in single:
        fold.apply(graph, node)
    return len(single)


def apply_separate(graph: Graph) -> int:
    return sum(separate.apply(graph, a, b) for a, b, _ in list(graph.edges()))


def apply_contract(graph: Graph) -> int:
    apply_forbid(graph)
    count = 0
    for a, b, _ in list(graph.edges()):
        if b in graph.adj.get(a, ()):
            follower = contract.follower(graph, a, b)
            if follower is not None:
                contract.apply(graph, a + b - follower, follower)
                count += 1
    return count


def apply_dominate(graph: Graph) -> int:
    apply_forbid(graph)
    return sum(dominate.apply(graph, node) for node in graph.nodes())


def apply_eliminate(graph: Graph) -> int:
    return sum(eliminate.apply(graph, node) is not None for node in graph.nodes())


def apply_rows(graph: Graph) -> int:
    before = len(graph.limits)
    rows.apply(graph)
    return before - len(graph.limits)


def apply_components(graph: Graph) -> int:
    return components.apply(graph)


def options(graph: Graph) -> int:
    return sum(len(cost) for cost in graph.cost.values())


APPLY: dict[str, Callable[[Graph], int]] = {
    name.removeprefix("apply_"): function for name, function in list(globals().items()) if name.startswith("apply_")
}


@pytest.mark.parametrize("name", APPLY)
def test_the_optimum_survives(name: str) -> None:
    fired = 0
    for seed in range(150):
        problem = random_problem(seed)
        want = enumerate_optimum(problem)
        graph = Graph(problem)
        try:
            fired += APPLY[name](graph) > 0
        except InfeasibleError:
            assert np.isinf(want), seed
            fired += 1
            continue
        small, ids = flatten(graph)
        got, choice = enumerate_best(small) if small.nodes else (0.0, [])
        assert got + graph.constant == pytest.approx(want), seed
        if np.isfinite(want):
            full = graph.restore(dict(zip(ids, choice, strict=True)))
            assert problem.feasible(full), seed
            assert problem.total_cost(full) == pytest.approx(want), seed
    assert fired > 5, "the reduction hardly ever applied: the test says nothing"


def test_twins_keep_the_optimum() -> None:
    rng = np.random.default_rng(0)
    merged = 0
    for seed in range(100):
        problem = doubled(random_problem(seed, rows=seed % 3), rng)
        small, back = twins.apply(problem)
        merged += len(small.costs) < len(problem.costs)
        want, (got, choice) = enumerate_optimum(problem), enumerate_best(small)
        assert got == want
        if np.isfinite(want):
            assert problem.total_cost(back.invert(choice)) == want
            assert problem.feasible(back.invert(choice))
    assert merged > 90


def test_parts_keep_the_optimum() -> None:
    several = 0
    for seed in range(0, 120, 2):
        pair = [random_problem(seed + i, rows=seed % 3) for i in range(2)]
        problem = side_by_side(pair)
        found, way = parts.apply(problem)
        several += len(found) > 1
        want = sum(enumerate_optimum(one) for one in pair)
        best = [enumerate_best(part.verify()) for part in found]
        assert sum(cost for cost, _ in best) == want, seed
        if np.isfinite(want):
            choice = way.invert([choice for _, choice in best])
            assert problem.feasible(choice)
            assert problem.total_cost(choice) == want
    assert several == 60


def test_a_row_joins_what_is_in_it() -> None:
    """0 and 1 share row 1; 2 is alone in row 2; a use of nothing joins nothing."""
    build = ProblemBuilder()
    nodes = [build.node([0.0, 1.0]) for _ in range(3)]
    for _ in range(3):
        build.row(5.0)
    build.hold(0, 2, nodes[0], 0, 1.0)
    build.hold(1, 2, nodes[1], 1, 2.0)
    build.hold(2, 3, nodes[2], 0, 3.0)
    build.hold(1, 1, nodes[2], 1, 3.0)
    found, way = parts.apply(build.build())
    assert [nodes.tolist() for nodes in way.nodes] == [[2], [0, 1]]
    assert [len(part.limits) for part in found] == [1, 2]


def test_parts_are_solved_one_by_one() -> None:
    """Rows bind in every part, so that no shortcut ends it before."""
    bound = []
    for seed in range(200):
        one = random_problem(seed, kind="dense", rows=2, tightness=0.5)
        best = enumerate_optimum(one)
        if one.nodes > 4 and enumerate_optimum(replace(one, limits=np.full(2, np.inf))) < best < np.inf:
            bound.append(one)
    problem = side_by_side(bound[:4])
    selection = solve(problem, seconds=60)
    assert (selection.cost, selection.gap) == (sum(map(enumerate_optimum, bound[:4])), 0.0)
    assert any("independent parts" in line for line in selection.done)


def side_by_side(problems: list[Problem]) -> Problem:
    """One problem of several that have nothing to do with each other."""
    build = ProblemBuilder()
    for problem in problems:
        nodes = [build.node(problem.costs[a:b]) for a, b in pairwise(problem.offsets.tolist())]
        for edge, (a, b) in enumerate(problem.edge_nodes.tolist()):
            build.edge(nodes[a], nodes[b], problem.matrix(edge))
        rows = [build.row(limit) for limit in problem.limits.tolist()]
        uses = (problem.use_node, problem.use_option, problem.use_begin, problem.use_end, problem.use_bytes)
        for node, option, begin, end, size in zip(*(each.tolist() for each in uses), strict=True):
            if end > begin:
                local = option - int(problem.offsets[node])
                build.hold(rows[begin], rows[end - 1] + 1, nodes[node], local, size)
    return build.build()


def test_compact_edges_keep_every_entry_and_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    fewer = 0
    for seed in range(40):
        problem = doubled(random_problem(seed, rows=0), rng)
        short = [compact.apply(problem.matrix(edge)) for edge in range(problem.edges)]
        for edge, found in enumerate(short):
            assert np.array_equal(found.matrix[np.ix_(found.rows, found.columns)], problem.matrix(edge))
            fewer += found.matrix.size < problem.matrix(edge).size
        best = enumerate_optimum(problem)
        if np.isfinite(best):
            assert ilp_cost(problem) == pytest.approx(best)
            with monkeypatch.context() as patch:
                patch.setattr(compact, "apply", lambda m: compact.Compact(m, np.arange(len(m)), np.arange(len(m.T))))
                assert ilp_cost(problem) == pytest.approx(best)
    assert fewer > 40


def ilp_cost(problem: Problem) -> float:
    costs: list[float] = []

    def report(bound: float | None, choice: list[int] | None) -> None:
        if choice is not None:
            costs.append(problem.total_cost(choice))

    assert branch_and_bound(problem, report, seconds=1e6)
    return min(costs)


def doubled(problem: Problem, rng: np.random.Generator) -> Problem:
    """The problem with the options of its first node there twice, the copies at other costs."""
    build = ProblemBuilder()
    times = [2] + [1] * (problem.nodes - 1)
    for i in range(problem.nodes):
        costs = np.tile(problem.costs[problem.offsets[i] : problem.offsets[i + 1]], times[i])
        build.node(costs + rng.integers(0, 3, len(costs)))
    for e, (a, b) in enumerate(problem.edge_nodes.tolist()):
        build.edge(a, b, np.tile(problem.matrix(e), (times[a], times[b])))
    for limit in problem.limits:
        build.row(limit)
    parts = (problem.use_option, problem.use_begin, problem.use_end, problem.use_bytes, problem.use_node)
    for option, begin, end, size, node in zip(*parts, strict=True):
        for copy in range(times[node]):
            local = option - problem.offsets[node] + copy * problem.options(node)
            build.hold(int(begin), int(end), int(node), int(local), float(size))
    return build.build()


def test_all_together_leave_little_of_a_chain() -> None:
    problem = random_problem(0, kind="chain", rows=0)
    assert reduce(problem).nodes() == []


@pytest.mark.parametrize("turns", [1, 2, 4, 7])
def test_the_optimum_survives_wherever_the_clock_stops_them(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixpoint, "TURNS", 1)
    for seed in range(60):
        problem = random_problem(seed)
        asked = iter(range(turns))
        try:
            graph = reduce(problem, lambda asked=asked: next(asked, None) is None)  # type: ignore[misc]
        except InfeasibleError:
            assert np.isinf(enumerate_optimum(problem))
            continue
        left, ids = flatten(graph)
        cost, choice = enumerate_best(left) if left.nodes else (0.0, [])
        assert cost + graph.constant == enumerate_optimum(problem)
        if np.isfinite(cost):
            assert problem.total_cost(graph.restore(dict(zip(ids, choice, strict=True)))) == cost + graph.constant


def test_only_maximal_live_sets_become_rows() -> None:
    build = ProblemBuilder()
    nodes = [build.node([0.0, 1.0]) for _ in range(3)]
    for _ in range(6):
        build.row(10.0)
    for node, (begin, end) in zip(nodes, [(0, 3), (1, 5), (4, 6)], strict=True):
        build.hold(begin, end, node, 0, 6.0)
    graph = Graph(build.build())
    rows.apply(graph)
    assert len(graph.limits) == 2  # {0, 1} and {1, 2}
