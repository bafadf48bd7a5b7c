"""Skeletons of pipelines: the end and the mesh class of each stage, for the searchers of `stage_searchers`.

A skeleton is completed from the last stage to the first: each stage takes the point that fits and hands over soonest.
The closed form of `bound` gives its step. So a trial is quick, and only the best trials are simulated.
"""

from __future__ import annotations

from itertools import product
from math import inf

import numpy as np

from meshwright.planner.stages.bound import Bound
from meshwright.planner.stages.problem import PlacedRun

Skeleton = tuple[tuple[int, int], ...]
"""(the cut at which a stage ends, its mesh class), from the first stage on."""

Devices = tuple[int, ...]


class Trials:
    """Trials of skeletons for one schedule and number of micro-batches. budget: trials that are allowed."""

    def __init__(self, bound: Bound, budget: int) -> None:
        self.bound, self.problem, self.left = bound, bound.problem, budget
        self.last = len(self.problem.all_cuts) - 1
        self.devices: list[Devices] = [mesh.devices for mesh in self.problem.meshes]
        self.known: dict[Skeleton, float] = {}
        self.halved: dict[tuple[int, int, Devices], list[Skeleton]] = {}
        made = bound.made
        self._first = np.searchsorted(made.begin, np.arange(self.last + 2))
        self._rows: dict[tuple[int, int, int], np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        self.of_devices: dict[Devices, list[int]] = {}
        self.pairs: dict[Devices, list[tuple[int, int]]] = {}
        for mesh, own in enumerate(self.devices):
            self.of_devices.setdefault(own, []).append(mesh)
        for one, other in product(range(len(self.devices)), repeat=2):
            self.pairs.setdefault(_sum(self.devices[one], self.devices[other]), []).append((one, other))
        self.work = self._least_work()

    def _least_work(self) -> list[float]:
        """Lower bound on the device-seconds of a micro-batch from each cut to the end."""
        made = self.bound.made
        ranks = np.array([float(mesh.ranks) for mesh in self.problem.meshes])
        spent = self.bound.cross_s * ranks[made.mesh]
        least = [0.0] * (self.last + 1)
        for begin in range(self.last - 1, -1, -1):
            rows = slice(self._first[begin], self._first[begin + 1])
            after = np.array(least)[made.end[rows]]
            least[begin] = float((spent[rows] + after).min(initial=inf))
        return least

    def rows(self, begin: int, end: int, mesh: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        key = (begin, end, mesh)
        if key not in self._rows:
            own = np.arange(self._first[begin], self._first[begin + 1])
            made = self.bound.made
            self._rows[key] = own[(made.end[own] == end) & (made.mesh[own] == mesh)]
        return self._rows[key]

    def stage(
        self, begin: int, end: int, mesh: int, place: tuple[int, int | None], enter: int | None
    ) -> tuple[int, float] | None:
        """(the row that fits and hands over soonest, the seconds of handing over).

        place: (stages from this one on, stages in all).
        enter: of the next stage.
        """
        made, rows = self.bound.made, self.rows(begin, end, mesh)
        if not len(rows):
            return None
        fits = self.bound.fits(*place, rows)
        crossing_s = made.crossing_s[end, made.leave[rows], enter] if enter is not None else np.zeros(len(rows))
        value = np.where(fits, self.bound.cross_s[rows] + crossing_s, inf)
        best = int(value.argmin())
        return (int(rows[best]), float(crossing_s[best])) if value[best] < inf else None

    def chosen(self, skeleton: Skeleton) -> tuple[float, list[int]]:
        """(the step by the closed form, infinite where the skeleton is impossible; the rows of its stages)."""
        count, bound = len(skeleton), self.bound
        used = tuple(map(sum, zip(*(self.devices[mesh] for _, mesh in skeleton), strict=True)))
        sizes = tuple(self.problem.meshes[mesh].ranks for _, mesh in skeleton)
        if not self.allowed(used, count) or skeleton[-1][0] != self.last or self.problem.sizes not in (None, sizes):
            return inf, []
        way_s = work_s = 0.0
        rows: list[int] = []
        enter: int | None = None
        for place in range(count - 1, -1, -1):
            end, mesh = skeleton[place]
            begin = skeleton[place - 1][0] if place else 0
            found = self.stage(begin, end, mesh, (count - place, count), enter) if begin < end else None
            if found is None:
                return inf, []
            row, crossing_s = found
            own_s = float(bound.cross_s[row])
            way_s = max(bound.microbatches * own_s, own_s + crossing_s + way_s)
            work_s = max(work_s, float(bound.work_s[row]))
            enter = int(bound.made.enter[row])
            rows.append(row)
        return max(way_s, work_s), rows[::-1]

    def allowed(self, used: Devices, stages: int) -> bool:
        have, problem = self.problem.devices, self.problem
        enough = all(a <= b for a, b in zip(used, have, strict=True)) and (problem.idle or used == have)
        return enough and problem.least_stages <= stages <= problem.stage_limit

    def try_one(self, skeleton: Skeleton) -> float:
        """The step of a skeleton. Counts as a trial even where it is known already."""
        self.left -= 1
        if skeleton not in self.known:
            self.known[skeleton] = self.chosen(skeleton)[0]
        return self.known[skeleton]

    def best(self, count: int) -> list[tuple[PlacedRun, ...]]:
        """The quickest skeletons tried, as pipelines."""
        order = sorted((value, skeleton) for skeleton, value in self.known.items() if value < inf)[:count]
        return [self.bound.runs(tuple(self.chosen(skeleton)[1])) for _, skeleton in order]


def _sum(one: Devices, other: Devices) -> Devices:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def minus(one: Devices, other: Devices) -> Devices:
    return tuple(a - b for a, b in zip(one, other, strict=True))
