"""The points of a StageProblem as columns of numbers, for vectorised dynamic programming."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.planner.stages.problem import StagePoint, StageProblem

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Port = tuple[int, Hashable]
"""(mesh class, layout of the boundary value) at one end of a stage."""


@dataclass(frozen=True, slots=True)
class StageOptions:
    """Rows of (range, mesh class, point), sorted by the range's begin and its boundary layouts.

    enter, leave: places of the Ports at the two ends.
    group: rows of one group differ in the point alone.
    fixed_s: seconds of a step besides its micro-batches.
    held_bytes: static bytes and the largest transient.
    restored_bytes: what recomputation brings back for backward.
    crossing_s: seconds of handing over, there and back, by (cut, leave, enter).
    """

    points: Sequence[StagePoint]
    begin: Ints
    end: Ints
    mesh: Ints
    enter: Ints
    leave: Ints
    group: Ints
    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    fixed_s: Floats
    static_bytes: Floats
    held_bytes: Floats
    resident_bytes: Floats
    restored_bytes: Floats
    limit_bytes: Floats
    enters: tuple[Port, ...]
    crossing_s: Floats


def options(problem: StageProblem, microbatches: int) -> StageOptions | None:
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
        crossing_s=_crossings(problem, microbatches, tuple(enters), tuple(leaves)),
    )


def _crossings(problem: StageProblem, microbatches: int, enters: tuple[Port, ...], leaves: tuple[Port, ...]) -> Floats:
    """Seconds of handing over by (cut, leave, enter)."""
    cuts = problem.all_cuts
    found = np.zeros((len(cuts), len(leaves), len(enters)))
    for at in range(1, len(cuts) - 1):
        for i, (mesh, layout) in enumerate(leaves):
            for j, (other, wanted) in enumerate(enters):
                found[at, i, j] = problem.crossing(cuts[at], mesh, layout, other, wanted, microbatches).seconds
    return found
