"""Interleaved pipelines: equal submeshes, with runs of segments assigned round-robin. Lower bound and candidates.

With K stages of v runs and M micro-batches, run r takes x_r for a micro-batch and c_r to hand it over, there and back.
Stage p begins when the first micro-batch has passed the runs before p, and ends before the last gradient goes back
through them. All its work lies between:

    T >= sum_(q<p) (x_q + c_q) + M (x_p + x_(p+K) + ...)     for every p; summed over all p:
    T >= 1/K sum_r (M + max(0, K-1-r)) x_r + max(0, K-1-r) c_r,      and    T >= 1/K sum_r (M x_r + e_r)

where e_r is the part of a step that does not overlap. A micro-batch passes all runs and returns, and waits at each for
the forwards of all others before it, or for their backwards:

    T >= sum_r (x_r + c_r) + (M-1) max_r max(f_r, b_r) >= sum_r x_r + c_r + (M-1)/(K v) max(f_r, b_r)

The minimum of these sums over all cuts of the chain is a lower bound (`Interleaved.least_s`). The first candidate has
the quickest slowest run; later ones have slower runs and take less in all (`Interleaved.pipelines`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from meshwright.planner.effort import ROUGH
from meshwright.planner.stages.dealt import Dealt
from meshwright.planner.stages.options import Floats, Ints, StageOptions
from meshwright.planner.stages.priced_memory import PricedMemory
from meshwright.planner.stages.problem import PlacedRun, StageProblem
from meshwright.schedule.orders import in_flight_by_run, in_flight_of


def interleavings(problem: StageProblem) -> Iterator[tuple[int, int, int]]:
    """(mesh class, stages, runs a stage) for which there are enough devices and cuts."""
    cuts = len(problem.all_cuts) - 1
    for mesh, made in enumerate(problem.meshes):
        most = min(have // want for have, want in zip(problem.devices, made.devices, strict=True) if want)
        for stages in range(max(2, problem.least_stages), min(most, problem.stage_limit) + 1):
            left = [have - stages * want for have, want in zip(problem.devices, made.devices, strict=True)]
            sized = problem.sizes is None or list(problem.sizes) == [made.ranks] * stages
            if sized and (problem.idle or not any(left)):
                yield from ((mesh, stages, runs) for runs in problem.interleave if stages * runs <= cuts)


class Interleaved:
    """Pipelines of so many stages on submeshes of one class, each with so many runs."""

    def __init__(
        self, problem: StageProblem, made: StageOptions, microbatches: int, mesh: int, stages: int, runs: int
    ) -> None:
        self.problem, self.made, self.microbatches = problem, made, microbatches
        self.mesh, self.stages, self.runs = mesh, stages, runs
        self.total = stages * runs
        self.own: Ints = np.flatnonzero(made.mesh == mesh)
        self.seconds: Floats = made.forward_s + made.input_s + made.weight_s
        self.cuts = len(problem.all_cuts)
        self.ways: dict[int, Ints] = {}

    def least_s(self) -> float:
        """Lower bound on the step. Of memory, each run's own alone is counted."""
        made = self.made
        fits = made.held_bytes[self.own] + made.resident_bytes[self.own] <= made.limit_bytes[self.own]
        if not fits.any():
            return inf
        able, others = self.own[fits], self.microbatches - 1
        slower_s = np.maximum(made.forward_s, made.input_s + made.weight_s)
        runs = range(self.total)
        once, never = [1] * self.total, [0] * self.total
        before = [max(0, self.stages - 1 - run) for run in runs]
        work_s = self._least_sum(able, self.microbatches * self.seconds + made.fixed_s, once, never)
        filled_s = self._least_sum(able, self.seconds, [self.microbatches + times for times in before], before)
        through_s = self._least_sum(able, self.seconds + others / self.total * slower_s, once, once)
        return max(work_s / self.stages, filled_s / self.stages, through_s)

    def least_in_memory_s(self, memory: PricedMemory) -> float:
        """Lower bound on the step: seconds and priced bytes of all stages together, less the price of all memory.

        At its first backward a stage holds `in_flight_by_run` micro-batches of each of its runs.
        """
        made, own = self.made, self.own
        held = [in_flight_by_run(stage, self.stages, self.microbatches, self.runs) for stage in range(self.stages)]
        limit_bytes = float(made.limit_bytes[own[0]])
        after = np.full((self.cuts, len(memory.prices)), inf)
        after[-1] = 0.0
        for run in range(self.total - 1, -1, -1):
            stage, before = run % self.stages, max(0, self.stages - 1 - run)
            costs = memory.at(held[stage][run // self.stages])[own] + before * self.seconds[own, None]
            taken = np.full_like(after, inf)
            np.minimum.at(taken, made.begin[own], costs + after[made.end[own]])
            after = taken
        return float((after[0] / self.stages - memory.prices * limit_bytes).max())

    def fullest_s(self, memory: PricedMemory | None) -> float:
        """Lower bound on the step (`planner.stages.dealt`) where a row takes the seconds of its segments together."""
        made, one = self.made, self.own[self.made.end[self.own] == self.made.begin[self.own] + 1]
        one = one[np.argsort(made.begin[one])]
        free_s = memory.free_s[one] if memory else self.microbatches * self.seconds[one]
        work = [(Dealt(np.tile(free_s, (self.stages, 1))), 0.0)]
        if memory is not None:
            every = range(self.stages)
            held = [min(in_flight_by_run(stage, self.stages, self.microbatches, self.runs)) for stage in every]
            priced = np.stack([memory.at(flight)[one] for flight in held])
            spare_s = memory.prices * float(made.limit_bytes[one[0]])
            work += [(Dealt(priced[:, :, at]), more_s) for at, more_s in enumerate(spare_s)]
        least_s = inf
        for idle_s in self._idle_s(self.seconds[one]):
            found_s = 0.0
            for dealt, more_s in work:
                if found_s < least_s:
                    found_s = dealt.fullest_s(more_s - idle_s, found_s)
            least_s = min(least_s, found_s)
        return least_s

    def _idle_s(self, seconds: Floats) -> Iterator[Floats]:
        """What each stage waits at least, for every length of the first run; longer ones make all wait longer.

        Stage p waits for the runs before p. The first stage has its first run alone to do until the runs of all other
        stages have passed the first micro-batch on, and once the last gradient is theirs.
        """
        before = np.concatenate([[0.0], np.cumsum(seconds)])
        others = self.stages - 1
        for length in range(1, len(seconds) - others + 1):
            passing_s = before[length + others] - before[length]
            first_s = max(0.0, passing_s - (self.microbatches - 1) * before[length])
            yield np.array([first_s, *before[length : length + others]])
            if not first_s:
                return

    def _least_sum(self, able: Ints, seconds: Floats, times: list[int], crossed: list[int]) -> float:
        """Of all runs, each counted so many times, and of what is handed over after each."""
        made, rows = self.made, self._quickest(able, seconds)
        handed, taken = self._after_all(), self._after_all()
        own_s, end, leave, first = seconds[rows], made.end[rows], made.leave[rows], self._first(rows)
        for run in range(self.total - 1, -1, -1):
            handed = self._handed(taken, crossed[run]) if run < self.total - 1 else handed
            taken = self._taken(rows, times[run] * own_s + handed[end, leave], first)
        return float(taken[0].min())

    def pipelines(self, limit_s: float = inf) -> Iterator[tuple[PlacedRun, ...]]:
        """Those whose slowest run is the quickest, then those with slower ones that take less in all. limit_s: what
        cannot be faster is left out."""
        slowest_s = self._slowest_s()
        seen = set()
        for slower in (1.0, ROUGH) if slowest_s < inf else ():
            chosen = self._cheapest(slowest_s * slower * (1 + 1e-12))
            if chosen not in seen and self._own_least_s(chosen) < limit_s:
                seen.add(chosen)
                yield self._placed(chosen)

    def _own_least_s(self, chosen: tuple[int, ...]) -> float:
        """What these runs take at least: each stage its own work, after the first micro-batch has come to it and before
        the last gradient goes back."""
        seconds = self.seconds[list(chosen)]
        before = np.cumsum(seconds)[: self.stages] - seconds[: self.stages]
        own = seconds.reshape(self.runs, self.stages).sum(axis=0)
        return float((before + self.microbatches * own).max())

    def _placed(self, chosen: tuple[int, ...]) -> tuple[PlacedRun, ...]:
        cuts, made = self.problem.all_cuts, self.made
        return tuple(
            PlacedRun(cuts[made.begin[i]], cuts[made.end[i]], run % self.stages, self.mesh, made.points[i])
            for run, i in enumerate(chosen)
        )

    def _able(self, run: int) -> Ints:
        """The rows that fit as this run, if all runs of its stage are like it."""
        stage = run % self.stages
        if stage not in self.ways:
            made, own = self.made, self.own
            flight = in_flight_of("interleaved", stage, self.stages, self.microbatches, self.runs)
            held = made.held_bytes[own] + (self.runs - 1) * made.static_bytes[own] + flight * made.resident_bytes[own]
            self.ways[stage] = self._quickest(own[held <= made.limit_bytes[own]], self.seconds)
        return self.ways[stage]

    def _quickest(self, rows: Ints, seconds: Floats) -> Ints:
        """Of rows that differ in the point alone."""
        order = rows[np.lexsort((seconds[rows], self.made.group[rows]))]
        return order[np.flatnonzero(np.diff(self.made.group[order], prepend=-1))]

    def _slowest_s(self) -> float:
        handed = np.full((self.cuts, self.made.crossing_s.shape[1]), inf)
        handed[self.cuts - 1] = 0.0
        for run in range(self.total - 1, -1, -1):
            rows = self._able(run)
            if not len(rows):
                return inf
            value = np.maximum(self.seconds[rows], handed[self.made.end[rows], self.made.leave[rows]])
            best = self._taken(rows, value).min(axis=1)
            handed = np.broadcast_to(best[:, None], handed.shape)
        return float(best[0])

    def _cheapest(self, limit_s: float) -> tuple[int, ...]:
        """Rows of the pipeline with the least sum of runs and crossings, no run slower than `limit_s`."""
        handed, tables = self._after_all(), []
        for run in range(self.total - 1, -1, -1):
            rows = self._able(run)
            rows = rows[self.seconds[rows] <= limit_s]
            tables.append((rows, handed))
            value = self.seconds[rows] + handed[self.made.end[rows], self.made.leave[rows]]
            handed = self._handed(self._taken(rows, value), 1)
        found: list[int] = []
        at, came = 0, np.zeros(len(self.made.enters))
        for rows, after in reversed(tables):
            here = rows[self.made.begin[rows] == at]
            value = self.seconds[here] + after[self.made.end[here], self.made.leave[here]] + came[self.made.enter[here]]
            option = int(here[int(value.argmin())])
            found.append(option)
            at = int(self.made.end[option])
            came = self.made.crossing_s[at, int(self.made.leave[option])]
        return tuple(found)

    def _after_all(self) -> Floats:
        handed: Floats = np.full((self.cuts, self.made.crossing_s.shape[1]), inf)
        handed[self.cuts - 1] = 0.0
        return handed

    def _first(self, rows: Ints) -> Ints:
        """Places at which rows of another (begin, enter) start."""
        keys = self.made.begin[rows] * len(self.made.enters) + self.made.enter[rows]
        return np.flatnonzero(np.diff(keys, prepend=-1))

    def _taken(self, rows: Ints, value: Floats, first: Ints | None = None) -> Floats:
        """The least value by (cut, enter)."""
        made = self.made
        found: Floats = np.full((self.cuts, len(made.enters)), inf)
        first = self._first(rows) if first is None else first
        if len(first):
            found[made.begin[rows[first]], made.enter[rows[first]]] = np.minimum.reduceat(value, first)
        return found

    def _handed(self, taken: Floats, weight: float) -> Floats:
        """The least value by (cut, leave), with crossings counted `weight` times."""
        if not weight:
            return np.broadcast_to(taken.min(axis=1)[:, None], self.made.crossing_s.shape[:2])
        found: Floats = (taken[:, None] + weight * self.made.crossing_s).min(axis=2)
        return found
