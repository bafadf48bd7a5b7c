"""A lower bound on pipelines, by dynamic programming, and all pipelines below it.

Stage p takes f_p and b_p for a micro-batch, t_p = f_p + b_p, e_p a step for what does not overlap, and handing over to
the next stage takes c_p, there and back. With M micro-batches no schedule that ends a micro-batch's backward on a stage
before it goes on to the stage before is faster than

    T >= sum_(q<p) (x_q + c_q) + M x_p          (the first input's way to p, p's own work, the last gradient's way back)
    T >= M t_p + e_p                            (p's work)

for every p, where x_q = t_q, or f_q + the input half of b_q where weight halves may come later. (`GPipe` and `1F1B` on
equal stages meet it: (M + K - 1) t.) For a given T the pipelines that keep to it are found from the last stage to the
first:

    A_k(i, d, l) = the latest that a micro-batch may arrive at segment i, taken in layout l by the first of k more
                   stages on d devices = max over j, m, points of min(T - M x, A_(k-1)(j, d - m, l') - c - x)

(`Bound.tables`); T is possible where A_k(0, all devices, l) >= 0, and every pipeline below T is walked from there
without a dead end (`Bound.walk`). Memory: stage k from the end holds what its schedule has in flight there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from meshwright.schedule import in_flight_of
from meshwright.schedule.orders import SPLIT
from meshwright.solve.stages_problem import PlacedRun, StagePoint, StageProblem

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Port = tuple[int, Hashable]
"""A mesh class and the layout in which a stage on it takes or hands over the boundary."""

ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Options:
    """Every range, mesh class and point, sorted by where the range begins and how it is entered."""

    points: tuple[StagePoint, ...]
    begin: Ints
    end: Ints
    mesh: Ints
    enter: Ints
    leave: Ints
    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    fixed_s: Floats
    held_bytes: Floats
    resident_bytes: Floats
    limit_bytes: Floats
    groups: Ints
    enters: tuple[Port, ...]
    crossing_s: Floats


def options(problem: StageProblem, microbatches: int) -> Options | None:
    """None where no range can be run at all. Positions are those of the cuts."""
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
                    rows.append((begin, enter, end, mesh, leave, point))
    if not rows:
        return None
    rows.sort(key=lambda row: row[:3])
    begin, enter, end, mesh, leave = (np.array([row[i] for row in rows]) for i in range(5))
    points = tuple(row[5] for row in rows)
    costs = [point.cost for point in points]
    beside = [cost.beside if problem.overlap else 0.0 for cost in costs]
    transient = [max(cost.forward_transient_bytes, cost.backward_transient_bytes) for cost in costs]
    fixed = [c.step_s + (c.first_s + c.last_s) * (1.0 - share) for c, share in zip(costs, beside, strict=True)]
    key = begin * len(enters) + enter
    return Options(
        points, begin, end, mesh, enter, leave,
        np.array([cost.forward_s for cost in costs]),
        np.array([cost.backward_input_s for cost in costs]),
        np.array([cost.backward_weight_s for cost in costs]),
        np.array(fixed),
        np.array([cost.static_bytes + work for cost, work in zip(costs, transient, strict=True)], dtype=float),
        np.array([cost.resident_bytes for cost in costs], dtype=float),
        np.array([problem.meshes[i].memory_bytes for i in mesh], dtype=float),
        np.flatnonzero(np.diff(key, prepend=-1)),
        tuple(enters),
        _crossings(problem, microbatches, tuple(enters), tuple(leaves)),
    )  # fmt: skip


def _crossings(problem: StageProblem, microbatches: int, enters: tuple[Port, ...], leaves: tuple[Port, ...]) -> Floats:
    """Seconds by (cut, how it is left, how the next stage is entered)."""
    cuts = problem.all_cuts
    found = np.zeros((len(cuts), len(leaves), len(enters)))
    for at in range(1, len(cuts) - 1):
        for i, (mesh, layout) in enumerate(leaves):
            for j, (other, wanted) in enumerate(enters):
                found[at, i, j] = problem.crossing(cuts[at], mesh, layout, other, wanted, microbatches).seconds
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """A_k and, for stages that come before, the latest arrival after the hand-over: by (cut, layout, devices)."""

    arrive: Floats
    handed: Floats
    value: Floats


class Bound:
    """One schedule and number of micro-batches. `total`: how many stages, where memory depends on it."""

    def __init__(self, problem: StageProblem, made: Options, schedule: str, microbatches: int) -> None:
        self.problem, self.made, self.schedule, self.microbatches = problem, made, schedule, microbatches
        split = schedule in SPLIT or schedule == "searched"
        self.cross_s = made.forward_s + made.input_s + (0.0 if split else made.weight_s)
        self.work_s = microbatches * (made.forward_s + made.input_s + made.weight_s) + made.fixed_s
        self._units()

    def _units(self) -> None:
        """Devices left, as one number: in units that all mesh classes are multiples of."""
        types = range(len(self.problem.devices))
        meshes = self.problem.meshes
        unit = [gcd(*(mesh.devices[i] for mesh in meshes)) or 1 for i in types]
        counts = [self.problem.devices[i] // unit[i] for i in types]
        shape = tuple(count + 1 for count in counts)
        self.all_devices = prod(shape) - 1
        grid = np.indices(shape).reshape(len(shape), -1)
        rest = np.full((len(meshes), grid.shape[1]), grid.shape[1])
        for m, mesh in enumerate(meshes):
            left = grid - np.array([[mesh.devices[i] // unit[i]] for i in types])
            fits = (left >= 0).all(axis=0)
            rest[m, fits] = np.ravel_multi_index(tuple(left[:, fits]), shape)
        self.rest = rest  # [mesh, devices] -> devices left, or one past the end where there are too few

    def in_flight(self, left: int, total: int | None) -> int:
        if self.schedule == "zero-bubble":
            return min(self.microbatches, left if total is None else total)
        if self.schedule == "searched":
            return 1
        return in_flight_of(self.schedule, 0, left, self.microbatches)

    def tables(self, limit_s: float, most: int, total: int | None = None) -> list[Table]:
        """A_1 to A_most; ends early where nothing is possible."""
        made = self.made
        cuts, count = len(self.problem.all_cuts), self.rest.shape[1]
        own_s = limit_s * (1 + ROUNDING) - self.microbatches * self.cross_s
        able = (self.work_s <= limit_s * (1 + ROUNDING)) & (own_s >= 0)
        rest = self.rest[made.mesh]
        keys = made.begin[made.groups], made.enter[made.groups]
        found: list[Table] = []
        handed = np.full((cuts, made.crossing_s.shape[1], count + 1), -np.inf)
        handed[cuts - 1, :, :count] = np.inf  # past the last segment nothing more has to arrive
        for left in range(1, most + 1):
            fits = made.held_bytes + self.in_flight(left, total) * made.resident_bytes <= made.limit_bytes
            after = handed[made.end[:, None], made.leave[:, None], rest] - self.cross_s[:, None]
            value = np.minimum(own_s[:, None], after)
            value[~(able & fits)] = -np.inf
            arrive = np.full((cuts, len(made.enters), count), -np.inf)
            arrive[keys] = np.maximum.reduceat(value, made.groups, axis=0)
            handed = np.full_like(handed, -np.inf)
            handed[:, :, :count] = (arrive[:, None] - made.crossing_s[..., None]).max(axis=2)
            handed[cuts - 1] = -np.inf
            found.append(Table(arrive, handed, value))
            if not np.isfinite(arrive).any():
                break
        return found

    def possible(self, limit_s: float, known: list[Table] | None = None) -> bool:
        """Whether some pipeline keeps to the bound T."""
        return any(True for _ in self._starts(limit_s))

    def _starts(self, limit_s: float) -> Iterator[tuple[int, list[Table]]]:
        """Numbers of stages that are possible, with their tables."""
        most = self.problem.stage_limit
        if self.schedule != "zero-bubble":
            tables = self.tables(limit_s, most)
            for left, table in enumerate(tables, start=1):
                if table.arrive[0, :, self.all_devices].max() >= 0:
                    yield left, tables
            return
        relaxed = {left for left, _ in self._relaxed(limit_s, most)}
        for total in sorted(relaxed):
            tables = self.tables(limit_s, total, total)
            if len(tables) == total and tables[-1].arrive[0, :, self.all_devices].max() >= 0:
                yield total, tables

    def _relaxed(self, limit_s: float, most: int) -> Iterator[tuple[int, Table]]:
        for left, table in enumerate(self.tables(limit_s, most), start=1):
            if table.arrive[0, :, self.all_devices].max() >= 0:
                yield left, table

    def walk(self, limit_s: float) -> Iterator[tuple[PlacedRun, ...]]:
        """Every pipeline whose bound is at most `limit_s`, those with most time to spare first at each stage."""
        for left, tables in self._starts(limit_s):
            yield from self._from(tables, left, 0, self.all_devices, None, 0.0, ())

    def _from(
        self,
        tables: list[Table],
        left: int,
        at: int,
        devices: int,
        leave: int | None,
        now_s: float,
        before: tuple[int, ...],
    ) -> Iterator[tuple[PlacedRun, ...]]:
        made = self.made
        if left == 0:
            yield self._runs(before)
            return
        first, last = np.searchsorted(made.begin, [at, at + 1])
        arrive_s = now_s + (0.0 if leave is None else made.crossing_s[at, leave, made.enter[first:last]])
        spare = tables[left - 1].value[first:last, devices] - arrive_s
        for row in np.argsort(-spare, kind="stable"):
            if spare[row] < 0:
                break
            option = int(first + row)
            then_s = float(np.broadcast_to(arrive_s, spare.shape)[row] + self.cross_s[option])
            rest = int(self.rest[made.mesh[option], devices])
            chosen = (*before, option)
            yield from self._from(
                tables, left - 1, int(made.end[option]), rest, int(made.leave[option]), then_s, chosen
            )

    def _runs(self, chosen: tuple[int, ...]) -> tuple[PlacedRun, ...]:
        cuts, made = self.problem.all_cuts, self.made
        return tuple(
            PlacedRun(cuts[made.begin[i]], cuts[made.end[i]], stage, int(made.mesh[i]), made.points[i])
            for stage, i in enumerate(chosen)
        )
