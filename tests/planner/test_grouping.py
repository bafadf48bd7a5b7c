"""Long programs are cut between groups of segments alone: where, and what that costs."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pipeline_plan import DEEP, holds

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.models.reference import parse_reference
from meshwright.planner.effort import ROUGH
from meshwright.planner.pipeline import search
from meshwright.planner.pipeline.balance import balanced_cuts
from meshwright.planner.plan import make_plan
from meshwright.planner.stages.grouping import grouped
from meshwright.planner.stages.problem import StageProblem

FIGURES = st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0.1, 5.0)), min_size=1, max_size=8)


@given(FIGURES, st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_groups_are_even_and_parted_where_little_crosses(figures: list[tuple[float, float]], groups: int) -> None:
    weights, traffic = [one[0] for one in figures], [one[1] for one in figures]
    count, most = len(weights), min(groups, len(weights))

    def heaviest(cuts: tuple[int, ...]) -> float:
        return max(sum(weights[a:b]) for a, b in pairwise(cuts))

    def price(cuts: tuple[int, ...]) -> float:
        uneven = sum((sum(weights[a:b]) * most / sum(weights)) ** 2 for a, b in pairwise(cuts))
        return uneven + sum(traffic[i] for i in cuts[1:-1]) / (float(np.mean(traffic[1:])) if count > 1 else 1.0)

    found = grouped(weights, traffic, groups)
    room = ROUGH * heaviest((0, *balanced_cuts(weights, most))) * (1 + 1e-6)
    assert len(found) == most + 1
    assert heaviest(found) <= room
    every = [(0, *inner, count) for inner in combinations(range(1, count), most - 1)]
    assert price(found) <= min(price(cuts) for cuts in every if heaviest(cuts) <= room / (1 + 2e-6)) + 1e-9


def test_little_crosses_where_groups_are_parted() -> None:
    assert grouped([1.0] * 6, [0.0, 9.0, 1.0, 9.0, 1.0, 9.0], 3) == (0, 2, 4, 6)
    assert grouped([1.0] * 6, [0.0, 1.0, 9.0, 9.0, 9.0, 1.0], 3) == (0, 1, 5, 6) or ROUGH < 2
    assert grouped([1.0] * 3, [0.0] * 3, 8) == (0, 1, 2, 3)


@pytest.mark.full
def test_a_grouped_program_is_planned_nearly_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 14 segments in 9 groups, three for each stage: a plan like any other, cut between groups, at most 10 % slower
    than ungrouped."""
    program = capture(*parse_reference(DEEP.replace("layers=6", "layers=12")).meta(16))
    cluster, pins = load_cluster("local:4"), ("pp=3", "schedule=1f1b")
    free = make_plan(program, cluster, pins=pins)
    seen: list[tuple[int, ...]] = []
    solve = search.solve_stages

    def spied(problem: StageProblem, *rest: object) -> object:
        seen.append(problem.all_cuts)
        return solve(problem, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "solve_stages", spied)
    monkeypatch.setattr(search, "GROUPS", 7)
    plan = make_plan(program, cluster, pins=pins)
    holds(plan, program)
    assert all(len(cuts) == 10 for cuts in seen)
    assert any({stage.end for stage in plan.stages} <= set(cuts) for cuts in seen)
    assert free.predicted.step_s <= plan.predicted.step_s * (1 + 1e-9)
    assert plan.predicted.step_s <= 1.1 * free.predicted.step_s
