"""Numbers of stages that memory leaves under `zero-bubble`: what a stage holds depends on its place from the front."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from meshwright.solve.stages.options import Floats, Ints

if TYPE_CHECKING:
    from meshwright.solve.stages.bound import Bound, Tables

ROUGHLY = 1e-9


def kept_numbers(bound: Bound, limit_s: float, tables: Tables, possible: list[int]) -> Iterator[int]:
    """Of these numbers of stages, under `zero-bubble`, those that memory leaves. From as many stages as there are
    micro-batches on, all hold the same at the same place from the front. tables: of less memory in use."""
    latest_s: Floats | None = None
    while possible:
        if latest_s is None:
            latest_s = np.maximum.reduce(tables) * (1 + ROUGHLY)
        total = min(possible[0], bound.microbatches)
        kept = from_the_front(bound, limit_s, possible[-1], total, latest_s)
        possible = [number for number in possible if number in kept]
        if total == bound.microbatches:
            yield from possible
            return
        if possible and possible[0] == total:
            yield total
            possible = possible[1:]


def from_the_front(bound: Bound, limit_s: float, most: int, total: int, latest_s: Floats) -> list[int]:
    """The numbers of stages, up to `most`, with which all devices and segments are used within `limit_s`, where
    each has in flight what a pipeline of `total` stages has.

    As `tables`, the other way round: the earliest that a value leaves the first p stages. What leaves after `latest_s`
    comes to no end in time.
    """
    made, count = bound.made, bound.rest.shape[1]
    left_s = np.full((len(bound.problem.all_cuts), made.crossing_s.shape[1], count + 1), np.inf)
    arrive_s = np.full((len(bound.problem.all_cuts), len(made.enters), count + 1), np.inf)
    arrive_s[0, :, bound.all_devices] = 0.0
    found: list[int] = []
    rows: Ints = np.zeros(0, dtype=np.int64)
    late = 0
    for place in range(1, most + 1):
        if late != min(bound.microbatches, place) or bound.problem.sizes is not None:
            late = min(bound.microbatches, place)
            rows = bound.quickest(bound.able(limit_s, total - place + 1, total))
            rows = rows[np.lexsort((made.leave[rows], made.end[rows]))]
        own = rows[np.logical_and.reduce(arrive_s == np.inf, axis=2)[made.begin[rows], made.enter[rows]] == 0]
        if not len(own):
            break
        alive = np.logical_or.reduce(arrive_s < np.inf, axis=(0, 1))
        columns = np.flatnonzero(alive[bound.more[np.unique(made.mesh[own])]].any(axis=0))
        before = np.stack([arrive_s[:, :, bound.more[mesh, columns]] for mesh in bound.used])
        came_s = before[bound.place[made.mesh[own]], made.begin[own], made.enter[own]]
        value = np.where(came_s <= bound.own_s(limit_s, own)[:, None], came_s + bound.cross_s[own, None], np.inf)
        first = np.flatnonzero(np.diff(made.end[own] * left_s.shape[1] + made.leave[own], prepend=-1))
        left_s[:] = np.inf
        left = own[first]
        left_s[made.end[left][:, None], made.leave[left][:, None], columns] = np.minimum.reduceat(value, first, axis=0)
        left_s[left_s > latest_s] = np.inf
        over = left_s[-1, :, : count if bound.problem.idle else 1]
        if place >= bound.problem.least_stages and over.min() < np.inf:
            found.append(place)
        arrive_s = (left_s[:, :, None] + made.crossing_s[..., None]).min(axis=1)
        arrive_s[-1] = np.inf
    return found
