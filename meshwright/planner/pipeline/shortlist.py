"""Which chains are worth looking at as stages, and a first guess at what a pipeline of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import numpy as np

from meshwright.planner.pipeline.meshes import StageMesh
from meshwright.planner.pipeline.sharded_chains import FIRST, RESIDENT, STATIC, STEP, SUMS, ShardedChain
from meshwright.planner.pipeline.table import Table
from meshwright.schedule import in_flight_of


def chosen_ports(
    found: Sequence[ShardedChain], meshes: Sequence[StageMesh], total: int, count: int, worst: float
) -> list[ShardedChain]:
    """Of each size and type of submesh, the chains that are quickest where they fit, with little, half and all of a
    pipeline in flight; none that needs more than `worst` times the device-seconds of the best of all."""
    kept: dict[int, ShardedChain] = {}
    best_s = inf
    for size in sorted({meshes[sharded.mesh].place for sharded in found}, key=str):
        own = [(i, sharded) for i, sharded in enumerate(found) if meshes[sharded.mesh].place == size]
        deep = max(2, min(count, total // size[0]))
        for flight in dict.fromkeys((1, max(1, deep // 2), deep)):
            (seconds, _), i = min((_score(sharded, meshes[sharded.mesh], total, flight), i) for i, sharded in own)
            best_s = min(best_s, seconds)
            if seconds < inf:
                kept[i] = found[i]
    quick = {
        i: min(_score(sharded, meshes[sharded.mesh], total, flight)[0] for flight in (1, 2))
        for i, sharded in kept.items()
    }
    return [kept[i] for i in sorted(kept) if quick[i] <= worst * best_s]


def _score(sharded: ShardedChain, stage: StageMesh, total: int, flight: int) -> tuple[float, float]:
    """Seconds of an equal part of the chain at the first level that fits so much in flight, or of one micro-batch on
    its way through all parts; then bytes."""
    share = stage.ranks / total
    held = inf
    for level in range(sharded.levels):
        whole = sharded.sums[level, -1]
        held = share * (whole[STATIC] + flight * whole[RESIDENT]) + sharded.figures[level, :, SUMS:].max()
        if held <= stage.memory_bytes:
            work_s = max(share * sharded.microbatches, 1.0) * whole[:FIRST].sum()
            return float(work_s + share * whole[FIRST : STEP + 1].sum()), float(held)
    return inf, float(held)


def start_s(table: Table, stages: int | None = None) -> float:
    """A step that some pipeline of equal submeshes, of so many stages if given, should reach: parts of equal work, each
    at a level that fits."""
    best = inf
    for number, sharded in enumerate(table.sharded_chains):
        stage = table.meshes[sharded.mesh]
        depth, segments = table.total // stage.ranks, len(table.program.segments)
        if table.total % stage.ranks or not 2 <= depth <= segments or depth != (stages or depth):
            continue
        times, fixed_s = [], 0.0
        for place, (a, b) in enumerate(pairwise(_equal_cuts(sharded, depth))):
            flight = in_flight_of("1f1b", place, depth, table.microbatches)
            found = _level_s(sharded, stage, a, b, flight) if b > a else None
            if found is None:
                break
            times.append(found[0])
            fixed_s = max(fixed_s, found[1])
        else:
            crossing_s = float(table.crossing_s[:, number, number].max())
            step_s = sum(times) + (depth - 1) * crossing_s + (table.microbatches - 1) * max(times) + fixed_s
            best = min(best, step_s)
    return best


def _equal_cuts(sharded: ShardedChain, depth: int) -> list[int]:
    work = sharded.sums[0, :, :FIRST].sum(axis=1)
    segments = len(work) - 1
    nearest = [int(np.abs(work - work[-1] * i / depth).argmin()) for i in range(depth + 1)]
    return [min(max(cut, i), segments - (depth - i)) for i, cut in enumerate(nearest)]


def _level_s(sharded: ShardedChain, stage: StageMesh, a: int, b: int, flight: int) -> tuple[float, float] | None:
    """Seconds of a micro-batch and of a step besides, at the first level that fits."""
    for level in range(sharded.levels):
        figures = sharded.sums[level, b] - sharded.sums[level, a]
        held = figures[STATIC] + flight * figures[RESIDENT] + sharded.figures[level, a:b, SUMS:].max()
        if held <= stage.memory_bytes:
            return float(figures[:FIRST].sum()), float(figures[FIRST : STEP + 1].sum())
    return None
