"""Problems of the stage programme whose points and crossings are functions, for tests and benches.

The planner makes the rows of a StageProblem as columns (`planner.pipeline.table`). Here they are listed point by point.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.planner.stages.options import Floats, Port, StageOptions
from meshwright.planner.stages.problem import Crossing, PlacedRun, StagePoint, StageProblem, StageSolution
from meshwright.planner.stages.search import solve_stages
from meshwright.simulate import Transfer

Points = Callable[[int, int, int, int], Sequence[StagePoint]]
"""(first, end, mesh class, micro-batches) -> ways to run these segments there."""

Crossings = Callable[[int, int, Hashable, int, Hashable, int], Crossing]
"""(end of the first stage, its mesh class and layout, those of the second, micro-batches) -> Crossing."""


def free(*_: object) -> Crossing:
    return Crossing(Transfer(0.0), Transfer(0.0))


@dataclass(frozen=True)
class ListedProblem(StageProblem):
    """points: ways to run a range. crossing: messages between two stages."""

    points: Points = lambda *_: ()
    crossing: Crossings = free

    def __post_init__(self) -> None:
        object.__setattr__(self, "placed", self._crossings)

    def _crossings(self, runs: Sequence[PlacedRun], count: int) -> list[Crossing]:
        ends = ((one.end, one.mesh, one.point.leave, other.mesh, other.point.enter) for one, other in pairwise(runs))
        return [self.crossing(*end, count) for end in ends]


def solve(problem: ListedProblem, *args: Any, **options: Any) -> StageSolution | None:
    """`solve_stages` with the rows of the problem."""
    rows = {count: listed_rows(problem, count) for count in problem.microbatches}
    return solve_stages(problem, rows, *args, **options)


def listed_rows(problem: ListedProblem, microbatches: int) -> StageOptions | None:
    """The rows of a problem, begin and end as places among the cuts; None where no range can be run at all."""
    rows: list[tuple[int, int, int, int, int, StagePoint]] = []
    enters: dict[Port, int] = {}
    leaves: dict[Port, int] = {}
    cuts = problem.all_cuts
    for begin in range(len(cuts) - 1):
        for end in range(begin + 1, len(cuts)):
            for mesh in range(len(problem.meshes)):
                for point in problem.points(cuts[begin], cuts[end], mesh, microbatches):
                    enter = enters.setdefault((mesh, point.enter), len(enters))
                    leave = leaves.setdefault((mesh, point.leave), len(leaves))
                    rows.append((begin, enter, end, leave, mesh, point))
    if not rows:
        return None
    rows.sort(key=lambda row: row[:4])
    where = np.array([row[:5] for row in rows], dtype=np.int64)
    points = tuple(row[5] for row in rows)
    costs = [point.cost for point in points]
    overlapped_s = [cost.overlappable_s if problem.overlap else 0.0 for cost in costs]
    transient = [max(cost.forward_transient_bytes, cost.backward_transient_bytes) for cost in costs]
    limits = np.array([float(mesh.memory_bytes) for mesh in problem.meshes])
    return StageOptions(
        points=points,
        begin=where[:, 0],
        enter=where[:, 1],
        end=where[:, 2],
        leave=where[:, 3],
        mesh=where[:, 4],
        group=np.cumsum(np.any(np.diff(where[:, :4], axis=0, prepend=-1), axis=1)),
        forward_s=np.array([cost.forward_s for cost in costs]),
        input_s=np.array([cost.backward_input_s for cost in costs]),
        weight_s=np.array([cost.backward_weight_s for cost in costs]),
        fixed_s=np.array(
            [
                c.step_s + c.gather_params_s + c.reduce_grads_s - hidden_s
                for c, hidden_s in zip(costs, overlapped_s, strict=True)
            ]
        ),
        static_bytes=np.array([float(cost.static_bytes) for cost in costs]),
        held_bytes=np.array([float(c.static_bytes + work) for c, work in zip(costs, transient, strict=True)]),
        resident_bytes=np.array([float(cost.resident_bytes) for cost in costs]),
        restored_bytes=np.array([float(cost.restored_bytes or 0) for cost in costs]),
        limit_bytes=limits[where[:, 4]],
        enters=tuple(enters),
        crossing_s=_crossing_s(problem, microbatches, tuple(enters), tuple(leaves)),
    )


def _crossing_s(problem: ListedProblem, count: int, enters: tuple[Port, ...], leaves: tuple[Port, ...]) -> Floats:
    """Seconds of handing over by (cut, leave, enter)."""
    cuts = problem.all_cuts
    found = np.zeros((len(cuts), len(leaves), len(enters)))
    for at in range(1, len(cuts) - 1):
        for i, (mesh, layout) in enumerate(leaves):
            for j, (other, wanted) in enumerate(enters):
                found[at, i, j] = problem.crossing(cuts[at], mesh, layout, other, wanted, count).seconds
    return found
