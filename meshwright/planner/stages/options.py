"""The points of a StageProblem as columns of numbers, for vectorised dynamic programming."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.planner.stages.problem import StagePoint

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
