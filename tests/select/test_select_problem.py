"""Building, reading, writing and refusing problems."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from select_oracle import enumerate_optimum, random_problem
from select_shared import CONTEST, needs_contest

import meshwright.select as select
from meshwright.errors import ProblemError
from meshwright.select import InfeasibleError, Problem, ProblemBuilder, solve
from meshwright.select.contest import dump, load


def two_nodes() -> Problem:
    build = ProblemBuilder()
    a, b = build.node([3.0, 1.0], name="a"), build.node([0.0, 2.0], name="b")
    build.edge(a, b, [[0.0, 5.0], [np.inf, 0.0]])
    build.row(10.0)
    build.use(0, a, 0, 8.0)
    build.use(0, b, 0, 4.0)
    return build.build()


def test_exported_names() -> None:
    assert sorted(select.__all__) == sorted(
        ["METHODS", "InfeasibleError", "Problem", "ProblemBuilder", "Progress", "Selection", "solve"]
    )


def test_cost_and_usage_of_a_choice() -> None:
    problem = two_nodes()
    assert problem.total_cost([0, 0]) == 3.0
    assert problem.total_cost([1, 0]) == np.inf
    assert problem.row_usage([0, 0]).tolist() == [12.0]
    assert problem.worst_row([0, 0]) == (0, 2.0)
    assert problem.worst_row([1, 1]) == (-1, 0.0)


def test_the_forbidden_pair_and_the_row_decide() -> None:
    selection = solve(two_nodes())
    assert (selection.choice, selection.cost, selection.gap) == ((1, 1), 3.0, 0.0)


def test_uses_of_one_option_in_one_row_add_up() -> None:
    build = ProblemBuilder()
    node = build.node([0.0, 1.0])
    build.row(10.0)
    build.use(0, node, 0, 6.0)
    build.use(0, node, 0, 6.0)
    assert solve(build.build()).choice == (1,)


def test_an_option_may_live_at_several_times_with_its_own_bytes() -> None:
    build = ProblemBuilder()
    keep_or_redo, other = build.node([0.0, 5.0]), build.node([0.0])
    for _ in range(3):
        build.row(10.0)
    build.hold(0, 3, keep_or_redo, 0, 8.0)  # kept
    build.use(0, keep_or_redo, 1, 8.0)  # computed, dropped,
    build.use(2, keep_or_redo, 1, 8.0)  # and computed again
    build.use(1, other, 0, 4.0)
    assert solve(build.build()).choice == (1, 0)


def test_no_nodes_is_a_problem_too() -> None:
    assert solve(ProblemBuilder().build()).cost == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offsets": np.array([0, 2, 2])}, "2 option costs|run over"),
        ({"offsets": np.array([0, 4, 4])}, "node 1 .* has 0 options"),
        ({"costs": np.array([3.0, np.nan, 0.0, 2.0])}, "option cost 1 is nan"),
        ({"edge_nodes": np.array([[0, 7]])}, r"edge 0 joins nodes \[0, 7\]"),
        ({"edge_nodes": np.array([[1, 1]])}, "node 1 to itself"),
        ({"edge_costs": np.zeros(3), "edge_offsets": np.array([0, 3])}, "has 3 costs"),
        ({"use_end": np.array([1, 5])}, "rows 0 to 5"),
        ({"use_begin": np.array([0, -1])}, "rows -1 to 1"),
        ({"use_bytes": np.array([8.0, -4.0])}, "-4.0 bytes"),
        ({"use_option": np.array([0, 9])}, "option entry 9"),
        ({"use_bytes": np.array([8.0])}, r"lengths \[1, 2\]"),
        ({"limits": np.array([np.nan])}, "limit of row 0"),
    ],
)
def test_arrays_that_disagree_are_refused_with_the_index(change: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(ProblemError, match=words):
        solve(replace(two_nodes(), **change))


def test_a_matrix_of_the_wrong_shape_is_refused_when_it_is_given() -> None:
    build = ProblemBuilder()
    a, b = build.node([0.0, 0.0]), build.node([0.0])
    with pytest.raises(ProblemError, match=r"\(1, 2\)"):
        build.edge(a, b, [[0.0, 0.0]])


def test_a_limit_nothing_can_meet_is_refused_with_its_numbers() -> None:
    build = ProblemBuilder()
    for _ in range(3):
        node = build.node([0.0, 1.0])
        for option in range(2):
            build.hold(0, 2, node, option, 7.0 + option)
    build.row(100.0)
    build.row(20.0)
    with pytest.raises(InfeasibleError, match=r"row 1 needs at least 21 bytes .* limit is 20"):
        solve(build.build())


def test_what_rules_out_everything_on_its_own_is_named() -> None:
    build = ProblemBuilder()
    a, b = build.node([0.0, 1.0], name="norm"), build.node([0.0], name="add")
    build.edge(a, b, [[np.inf], [np.inf]])
    for method in ("auto", "elimination"):
        with pytest.raises(InfeasibleError, match=r"edge 0 forbids every pair of node 0 \(norm\) and node 1 \(add\)"):
            solve(build.build(), method=method)
        with pytest.raises(InfeasibleError, match=r"all 2 options of node 0 \(norm\) are forbidden"):
            solve(replace(build.build(), costs=np.array([np.inf, np.inf, 0.0])), method=method)


def test_when_none_is_found_the_selection_says_which_row_and_by_how_much() -> None:
    problem = two_nodes()
    selection = solve(replace(problem, limits=np.array([11.0])), method="rl", work=0.01)
    worst = replace(problem, limits=np.array([11.0])).worst_row(selection.choice)
    assert selection.over == worst
    if not selection.feasible:
        assert f"row {worst[0]} is over by {worst[1]:.6g} bytes" in str(selection) or np.isinf(selection.cost)


EXAMPLE = {
    "problem": {
        "name": "small",
        "nodes": {
            "intervals": [[0, 4], [2, 6]],
            "costs": [[1, 5], [1, 1000000000000000000]],
            "usages": [[9, 2], [3, 3]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 1, 2, 3]]},
        "usage_limit": 10,
    }
}


def test_reads_the_contest_form(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(EXAMPLE))
    problem = load(path)
    assert len(problem.limits) == 1  # moments 2 and 3, where both live, are the only ones that matter
    assert solve(problem).choice == (1, 0)
    del EXAMPLE["problem"]["usage_limit"]
    path.write_text(json.dumps(EXAMPLE))
    assert solve(load(path)).choice == (0, 0)


def test_negative_and_backward_intervals_are_refused(tmp_path: Path) -> None:
    for interval in ([-1, 3], [5, 3]):
        bad = json.loads(json.dumps(EXAMPLE))
        bad["problem"]["nodes"]["intervals"][1] = interval
        path = tmp_path / "bad.json"
        path.write_text(json.dumps(bad))
        with pytest.raises(ProblemError, match=f"node 1 .*{interval[0]}, {interval[1]}"):
            load(path)


def test_moments_may_be_far_apart_but_not_beyond_64_bits(tmp_path: Path) -> None:
    far, path = json.loads(json.dumps(EXAMPLE)), tmp_path / "far.json"
    far["problem"] |= {"usage_limit": 10}
    far["problem"]["nodes"]["intervals"] = [[0, 10**15], [10**14, 10**16]]
    path.write_text(json.dumps(far))
    assert solve(load(path)).choice == (1, 0)
    for where, value, words in (("nodes", "intervals", "interval of node 1"), ("edges", "nodes", "edge 0")):
        bad = json.loads(json.dumps(far))
        bad["problem"][where][value][-1][1] = 10**25
        path.write_text(json.dumps(bad))
        with pytest.raises(ProblemError, match=rf"{words} is .*1{'0' * 25}"):
            load(path)


def test_text_that_is_no_problem_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text('{"problem": {"nodes": 3}}')
    with pytest.raises(ProblemError, match="not a selection problem"):
        load(path)


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_what_is_written_reads_back_with_the_same_optimum(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(EXAMPLE))
    problem = load(path)
    dump(problem, tmp_path / f"again.{suffix}")
    assert enumerate_optimum(load(tmp_path / f"again.{suffix}")) == enumerate_optimum(problem)


def test_a_problem_with_several_intervals_does_not_fit_the_contest_form(tmp_path: Path) -> None:
    build = ProblemBuilder()
    node = build.node([0.0, 0.0])
    build.row(1.0)
    build.row(1.0)
    build.use(0, node, 0, 1.0)
    build.use(1, node, 1, 1.0)
    with pytest.raises(ProblemError, match="several intervals"):
        dump(build.build(), tmp_path / "no.json")


@needs_contest
def test_the_contests_example_has_the_published_optimum() -> None:
    problem = load(CONTEST / "example.json")
    selection = solve(problem)
    assert (selection.choice, selection.cost, selection.gap) == ((0, 0, 2, 1, 0), 445.0, 0.0)
    assert enumerate_optimum(problem) == 445.0


@pytest.mark.full
@needs_contest
def test_the_transformer_instance_is_solved_to_its_published_optimum() -> None:
    selection = solve(load(CONTEST / "B.json.gz"), seconds=60)
    assert selection.cost == 532843.0
    assert selection.gap < 1e-6


def test_random_problems_survive_a_round_trip_through_a_builder() -> None:
    """`hold` and `edge` lose nothing: the oracle's problems are themselves made by the builder."""
    problem = random_problem(5, rows=3)
    assert problem.verify() is problem


def test_importing_the_engine_brings_neither_torch_nor_numba_nor_highs() -> None:
    """Small problems must not pay for what only large ones need, and the engine needs no torch at all."""
    script = "import sys, meshwright.select; print([m for m in ('torch', 'numba', 'highspy') if m in sys.modules])"
    root = Path(__file__).parents[2]
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert answer.stdout.strip() == "[]"
