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

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

import numpy as np

from meshwright.planner.stages.options import Bools, Floats, Ints, StageOptions
from meshwright.planner.stages.priced_memory import PricedMemory
from meshwright.planner.stages.problem import PlacedRun, StageProblem
from meshwright.schedule import in_flight_of
from meshwright.schedule.orders import SPLIT

ROUNDING = 1e-12
ROUGHLY = 1e-9

Tables = list[Floats]
"""For k = 0, 1, ... stages still to come: the latest that a value may leave a stage before them, by (cut, layout in
which it is left, devices). One more column than there are numbers of devices stands for too few: never."""


class Bound:
    """One schedule and number of micro-batches. split: weight halves may come later, though the schedule's name does
    not say so."""

    def __init__(
        self,
        problem: StageProblem,
        made: StageOptions,
        schedule: str,
        microbatches: int,
        split: bool = False,
        memory: PricedMemory | None = None,
    ) -> None:
        """memory: of the rows, where their own bytes are not those of one way to run them."""
        self.problem, self.made, self.schedule, self.microbatches = problem, made, schedule, microbatches
        self.memory = memory
        split = split or schedule in SPLIT or schedule == "searched"
        self.cross_s = made.forward_s + made.input_s + (0.0 if split else made.weight_s)
        self.work_s = microbatches * (made.forward_s + made.input_s + made.weight_s) + made.fixed_s
        self._units()

    def _units(self) -> None:
        """Devices left, as one number: in units that all mesh classes are multiples of."""
        types = range(len(self.problem.devices))
        meshes = self.problem.meshes
        unit = [gcd(*(mesh.devices[i] for mesh in meshes)) or 1 for i in types]
        shape = tuple(self.problem.devices[i] // unit[i] + 1 for i in types)
        self.all_devices = prod(shape) - 1
        grid = np.indices(shape).reshape(len(shape), -1)
        rest = np.full((len(meshes), grid.shape[1]), grid.shape[1])
        for m, mesh in enumerate(meshes):
            left = grid - np.array([[mesh.devices[i] // unit[i]] for i in types])
            fits = (left >= 0).all(axis=0)
            rest[m, fits] = np.ravel_multi_index(tuple(left[:, fits]), shape)
        self.used = np.unique(self.made.mesh)  # of many classes few have rows
        self.place = np.searchsorted(self.used, np.arange(len(meshes)))
        self.rest = rest  # [mesh, devices] -> devices left, or one past the end where there are too few
        self.more = np.full((len(meshes), grid.shape[1]), grid.shape[1])  # [mesh, devices left] -> devices before
        for m in range(len(meshes)):
            before = np.flatnonzero(rest[m] < grid.shape[1])
            self.more[m, rest[m, before]] = before
        ranks = (grid * np.array(unit)[:, None]).sum(axis=0)
        self.others = ranks.max() - ranks  # [devices] -> how many there are besides

    def in_flight(self, left: int, total: int | None) -> int:
        """What the first of `left` stages holds, of `total` in all or more where that matters."""
        if self.schedule == "zero-bubble":
            return min(self.microbatches, left if total is None else total)
        if self.schedule == "searched":
            return 1
        return in_flight_of(self.schedule, 0, left, self.microbatches)

    def fits(self, left: int, total: int | None, rows: Ints | None = None) -> Bools:
        """The rows, or these of them, whose memory allows them there. What weight halves that are put off read has to
        stay, recomputed or not."""
        made, which = self.made, slice(None) if rows is None else rows
        held = made.held_bytes[which] + self.in_flight(left, total) * made.resident_bytes[which]
        late = self._late(left, total)
        if late:
            held = held + late * made.restored_bytes[which]
        found: Bools = held <= made.limit_bytes[which]
        return found

    def _late(self, left: int, total: int | None) -> int:
        """How many weight halves the first of `left` stages puts off, of `total` stages or more."""
        if self.schedule != "zero-bubble":
            return 0
        return 1 if total is None else min(self.microbatches, max(1, total - left + 1))

    def able(self, limit_s: float, left: int, total: int | None) -> Bools:
        """The rows whose own work and memory allow them as the first of so many stages."""
        limit_s *= 1 + ROUNDING
        found: Bools = self.fits(left, total) & (self.work_s <= limit_s) & (self.microbatches * self.cross_s <= limit_s)
        if self.memory is not None:
            held = self.memory.least_bytes(limit_s, self.in_flight(left, total))
            found &= held <= self.made.limit_bytes
        sizes = self.problem.sizes
        if sizes is not None:
            ranks = np.array([mesh.ranks for mesh in self.problem.meshes])
            found &= ranks[self.made.mesh] == (sizes[-left] if left <= len(sizes) else 0)
        return found

    def tables(
        self, limit_s: float, most: int, total: int | None = None, any_will_do: bool = False
    ) -> tuple[Tables, list[int]]:
        """Up to `most` stages, and with how many all devices and segments are used within `limit_s`; any_will_do: one
        such number is enough. total: what so many stages hold, which is no more than what more of them do. What
        nothing before it could reach in time is left out."""
        made = self.made
        cuts, count = len(self.problem.all_cuts), self.rest.shape[1]
        handed = np.full((cuts, made.crossing_s.shape[1], count + 1), -np.inf)
        # Past the last segment nothing more has to arrive.
        handed[cuts - 1, :, : count if self.problem.idle else 1] = np.inf
        found: Tables = [handed]
        possible: list[int] = []
        in_time = self._in_time(limit_s)
        rounds = self._rounds(limit_s) if self.schedule == "searched" else None
        rows: Ints | None = None
        before: tuple[int, ...] = ()
        for left in range(1, most + 1):
            held = (self.in_flight(left, total), self._late(left, total))
            if held != before or self.problem.sizes is not None:
                before, rows = held, self.quickest(self.able(limit_s, left, total))
            if rows is None or not len(rows):
                break
            arrive = self._arrive(limit_s, handed, rows, rounds)
            arrive[arrive < in_time] = -np.inf
            reached = np.flatnonzero(np.isfinite(arrive).any(axis=(0, 1)))
            if not len(reached):
                break
            if left >= self.problem.least_stages and arrive[0, :, self.all_devices].max() >= 0:
                possible.append(left)
            handed = np.full_like(handed, -np.inf)
            columns = slice(reached[0], reached[-1] + 1)
            handed[:, :, columns] = (arrive[:, None, :, columns] - made.crossing_s[..., None]).max(axis=2)
            handed[cuts - 1] = -np.inf
            found.append(handed)
            if possible and any_will_do:
                break
        return found, possible

    def _arrive(self, limit_s: float, handed: Floats, rows: Ints, rounds: Floats | None = None) -> Floats:
        """The latest that a value may arrive, by (cut, layout in which it is taken, devices), one stage before.

        rounds: of each row, how often what it holds in flight has to go to the last stage and back.
        """
        made, count = self.made, self.rest.shape[1]
        arrive = np.full((handed.shape[0], len(made.enters), count), -np.inf)
        allowed: Bools = handed > -np.inf
        onward: Bools = np.logical_or.reduce(allowed, axis=2)
        rows = rows[onward[made.end[rows], made.leave[rows]]]
        if not len(rows):
            return arrive
        alive: Bools = np.logical_or.reduce(allowed, axis=(0, 1))
        columns = np.flatnonzero(alive[self.rest[np.unique(made.mesh[rows])]].any(axis=0))
        shifted = np.stack([handed[:, :, self.rest[mesh, columns]] for mesh in self.used])
        after = shifted[self.place[made.mesh[rows]], made.end[rows], made.leave[rows]] - self.cross_s[rows, None]
        value = np.minimum(self.own_s(limit_s, rows)[:, None], after)
        if rounds is not None:
            rest = self.rest[made.mesh[rows][:, None], columns]
            way_s = self.cross_s[rows, None] + self._onward_s[made.end[rows][:, None], rest]
            value = np.minimum(value, limit_s * (1 + ROUGHLY) - rounds[rows, None] * way_s)
        keys = made.begin[rows] * len(made.enters) + made.enter[rows]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        best = np.maximum.reduceat(value, first, axis=0)
        arrive[made.begin[rows[first]][:, None], made.enter[rows[first]][:, None], columns] = best
        return arrive

    def _rounds(self, limit_s: float) -> Floats:
        """Of each row: with K micro-batches in flight, the M of a step pass the stages after it in ceil(M / K) rounds,
        each of which waits for the first of the round before."""
        made = self.made
        if self.memory is not None:
            most = self.memory.most_in_flight(limit_s, made.limit_bytes)
        else:
            spare = made.limit_bytes - made.held_bytes
            most = np.divide(spare, made.resident_bytes, out=np.full(len(spare), np.inf), where=made.resident_bytes > 0)
        most = np.clip(np.floor(most * (1 + ROUNDING)), 1, self.microbatches)
        found: Floats = np.ceil(self.microbatches / most)
        return found

    @cached_property
    def _onward_s(self) -> Floats:
        """By (cut, devices): the least seconds of a micro-batch from there to the last segment and back."""
        made, cuts = self.made, len(self.problem.all_cuts)
        found = np.full((cuts, self.rest.shape[1] + 1), np.inf)
        found[cuts - 1, :-1] = 0.0
        for begin in range(cuts - 2, -1, -1):
            own = np.arange(*np.searchsorted(made.begin, [begin, begin + 1]))
            if len(own):
                after = found[made.end[own][:, None], self.rest[made.mesh[own]]]
                found[begin, :-1] = (self.cross_s[own, None] + after).min(axis=0)
        return found

    def _in_time(self, limit_s: float) -> Floats:
        """By (cut, 1, devices): when a value is there at the earliest, infinite where the devices that are left for
        what comes before take longer than `limit_s`."""
        earliest, spent = self._before
        most = limit_s * (1 + ROUGHLY) * self.others
        late = self.microbatches * spent[:, None] > most[None]
        return np.where(late, np.inf, earliest[:, None] * (1 - ROUGHLY))[:, None]

    @cached_property
    def _before(self) -> tuple[Floats, Floats]:
        """Of everything before each cut, a micro-batch: the least seconds and the least device-seconds."""
        made, cuts = self.made, len(self.problem.all_cuts)
        ranks = np.array([float(mesh.ranks) for mesh in self.problem.meshes])[made.mesh]
        found = np.full((2, cuts), np.inf)
        found[:, 0] = 0.0
        for begin in range(cuts - 1):
            first, last = np.searchsorted(made.begin, [begin, begin + 1])
            own = slice(first, last)
            for place, weight in ((0, 1.0), (1, ranks[own])):
                np.minimum.at(found[place], made.end[own], found[place, begin] + weight * self.cross_s[own])
        return found[0], found[1]

    def own_s(self, limit_s: float, rows: Ints) -> Floats:
        """The latest that a micro-batch may arrive for the stage's own work."""
        found: Floats = limit_s * (1 + ROUNDING) - self.microbatches * self.cross_s[rows]
        return found

    def quickest(self, able: Bools) -> Ints:
        """Of the rows that differ in the point alone, the one that crosses fastest: it allows the latest arrival."""
        order = self._by_group[able[self._by_group]]
        return order[np.flatnonzero(np.diff(self.made.group[order], prepend=-1))]

    @cached_property
    def _by_group(self) -> Ints:
        return np.lexsort((self.cross_s, self.made.group))

    def possible(self, limit_s: float) -> bool:
        """Whether some pipeline keeps to the bound T."""
        if self.schedule != "zero-bubble":
            return bool(self.tables(limit_s, self.problem.stage_limit, any_will_do=True)[1])
        return any(True for _ in kept_numbers(self, limit_s, *self.tables(limit_s, self.problem.stage_limit)))

    def classes_within(self, limit_s: float) -> frozenset[int]:
        """The mesh classes of a pipeline that keeps to the bound T, whose rounds under `searched` are not looked at;
        none where there is no such pipeline."""
        start = next(self._starts(limit_s, any_will_do=True), None)
        if start is None:
            return frozenset()
        rows = next(self._walked(limit_s, *start, few=True), range(len(self.made.mesh)))
        return frozenset(self.made.mesh[list(rows)].tolist())

    def _starts(self, limit_s: float, any_will_do: bool = False) -> Iterator[tuple[int, int | None, Tables]]:
        """Numbers of stages that are possible, with their tables."""
        if self.schedule != "zero-bubble":
            tables, possible = self.tables(limit_s, self.problem.stage_limit, any_will_do=any_will_do)
            yield from ((left, None, tables) for left in possible)
            return
        for left in kept_numbers(self, limit_s, *self.tables(limit_s, self.problem.stage_limit)):
            yield left, left, self.tables(limit_s, left, left)[0]

    @cached_property
    def least_s(self) -> float:
        """All micro-batches' device-seconds, on all devices: no pipeline is faster."""
        made, cuts = self.made, len(self.problem.all_cuts)
        ranks = np.array([float(mesh.ranks) for mesh in self.problem.meshes])
        spent = self.cross_s * ranks[made.mesh]
        least = np.full(cuts, np.inf)
        least[cuts - 1] = 0.0
        for begin in range(cuts - 2, -1, -1):
            first, last = np.searchsorted(made.begin, [begin, begin + 1])
            least[begin] = (spent[first:last] + least[made.end[first:last]]).min(initial=np.inf)
        return float(self.microbatches * least[0] / sum(self.problem.devices))

    @property
    def most_s(self) -> float:
        """No pipeline's bound is higher."""
        crossing_s = self.cross_s.max() + self.made.crossing_s.max()
        return float(self.work_s.max() + self.problem.stage_limit * crossing_s)

    def walk(self, limit_s: float, few: bool = False) -> Iterator[tuple[PlacedRun, ...]]:
        """Every pipeline whose bound is at most `limit_s`, those with most time to spare first at each stage. few: of
        those that differ in their points alone, the one whose stages cross fastest."""
        for start in self._starts(limit_s):
            yield from map(self.runs, self._walked(limit_s, *start, few))

    def _walked(
        self, limit_s: float, left: int, total: int | None, tables: Tables, few: bool
    ) -> Iterator[tuple[int, ...]]:
        """The rows of each with so many stages."""
        able = [self.able(limit_s, k, total) for k in range(1, left + 1)]
        if few:
            able = [np.isin(np.arange(len(one)), self.quickest(one)) for one in able]
        start = _Place(left, 0, self.all_devices, None, 0.0, ())
        return self._from(_Walk(limit_s, tables, able), start)

    def _from(self, walk: _Walk, place: _Place) -> Iterator[tuple[int, ...]]:
        made = self.made
        if place.left == 0:
            yield place.chosen
            return
        first, last = np.searchsorted(made.begin, [place.at, place.at + 1])
        rows = np.arange(first, last)[walk.able[place.left - 1][first:last]]
        arrive_s = np.full(len(rows), place.now_s)
        if place.leave is not None:
            arrive_s += made.crossing_s[place.at, place.leave, made.enter[rows]]
        rest = self.rest[made.mesh[rows], place.devices]
        after = walk.tables[place.left - 1][made.end[rows], made.leave[rows], rest] - self.cross_s[rows]
        spare = np.minimum(self.own_s(walk.limit_s, rows), after) - arrive_s
        for i in np.argsort(-spare, kind="stable"):
            if spare[i] < 0:
                break
            option = int(rows[i])
            then_s = float(arrive_s[i] + self.cross_s[option])
            chosen = (*place.chosen, option)
            onward = _Place(
                place.left - 1, int(made.end[option]), int(rest[i]), int(made.leave[option]), then_s, chosen
            )
            yield from self._from(walk, onward)

    def runs(self, chosen: tuple[int, ...]) -> tuple[PlacedRun, ...]:
        cuts, made = self.problem.all_cuts, self.made
        return tuple(
            PlacedRun(cuts[made.begin[i]], cuts[made.end[i]], stage, int(made.mesh[i]), made.points[i])
            for stage, i in enumerate(chosen)
        )


@dataclass(frozen=True, slots=True)
class _Walk:
    """able[k - 1]: the rows that may be the first of k stages."""

    limit_s: float
    tables: Tables
    able: list[Bools]


@dataclass(frozen=True, slots=True)
class _Place:
    """So many stages to come from a cut on, what is left of the devices, and how the stage before left the value."""

    left: int
    at: int
    devices: int
    leave: int | None
    now_s: float
    chosen: tuple[int, ...]


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
