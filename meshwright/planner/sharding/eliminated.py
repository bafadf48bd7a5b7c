"""Elimination of a segment's Problem: the minimum for each combination of boundary options, and its Choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.planner.sharding.segment import Answer, SegmentProblem
from meshwright.planner.space.saved import Matrix
from meshwright.select import InfeasibleError, Problem, solve
from meshwright.select.tables import Tables


@dataclass(frozen=True, slots=True)
class Solved:
    """costs: the minimum for each combination of boundary options; its axes are those of `SegmentProblem.boundary`."""

    segment: SegmentProblem
    problem: Problem
    graph_index: int
    costs: Matrix
    tables: Tables | None

    def answer(self, options: tuple[int, ...]) -> Answer:
        picked = self.tables.choice(options) if self.tables else _solve_at(self.segment, self.problem, options)[1]
        return self.segment.answer(picked, self.graph_index, float(self.costs[options]))


def solve_segment(
    segment: SegmentProblem,
    price_per_byte: float,
    graph_index: int,
    recompute: bool = False,
    cap_bytes: int | None = None,
    overlap_weight: float | None = None,
    flight: float = 1.0,
) -> Solved:
    problem = segment.at(price_per_byte, recompute, cap_bytes, overlap_weight, flight)
    if segment.prepared is None:
        shape = [len(side.layouts) for side in segment.boundary]
        costs = np.array([_solve_at(segment, problem, options)[0] for options in np.ndindex(*shape)]).reshape(shape)
        return Solved(segment, problem, graph_index, costs, None)
    found = segment.prepared.run(problem.costs)
    return Solved(segment, problem, graph_index, found.costs, found)


def _solve_at(segment: SegmentProblem, problem: Problem, options: tuple[int, ...]) -> tuple[float, list[int]]:
    """(cost, choice) of one combination, by the selection engine with other boundary options forbidden."""
    costs = problem.costs.copy()
    for side, option in zip(segment.boundary, options, strict=True):
        first = problem.offsets[side.node]
        forbidden = [first + other for other in range(len(side.layouts)) if other != option]
        costs[forbidden] = np.inf
    try:
        found = solve(replace(problem, costs=costs))
    except InfeasibleError:
        return np.inf, []
    return found.cost, list(found.choice)
