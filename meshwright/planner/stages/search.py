"""The pipeline with the least simulated step: stages, their submeshes and points, schedule and micro-batches.

Interleaved pipelines are tried first: where memory is short they are far ahead, and what cannot beat them is dropped
after one look. For every number of micro-batches and other schedule the least T that the bound allows is found by
bisection (`_lowest`) and the first few pipelines there are simulated. Then all pipelines whose bound is below the best
are walked, as many as the budget of simulations allows: where none is left the best is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf

from meshwright.errors import PlanError, counted
from meshwright.planner.effort import CLOSE, EFFORTS
from meshwright.planner.stages.bound import Bound
from meshwright.planner.stages.interleaved import Interleaved, interleavings
from meshwright.planner.stages.options import StageOptions, options
from meshwright.planner.stages.price import price_pipeline
from meshwright.planner.stages.problem import Pipelined, PlacedRun, StageProblem, StageSolution
from meshwright.simulate import Timeline

SIMULATIONS, FIRST = EFFORTS["default"].probed, EFFORTS["default"].shardings
"""SIMULATIONS: pipelines simulated for each number of micro-batches. FIRST: of these, how many of one schedule come
before any other is walked further, and how many runners-up are remembered."""

Made = Mapping[int, StageOptions | None]
"""The rows for each number of micro-batches."""


@dataclass(slots=True)
class _Family:
    """One schedule and number of micro-batches: low_s is a bound on what is not yet simulated of it."""

    bound: Bound
    low_s: float = 0.0
    high_s: float = inf

    def may(self, limit_s: float) -> bool:
        return self.low_s < limit_s


@dataclass(slots=True)
class _Search:
    problem: StageProblem
    budget: int
    best_s: float
    best: tuple[tuple[PlacedRun, ...], str, int, Timeline] | None = None
    simulated: int = 0
    interleaved: int = 0
    seen: dict[tuple[object, ...], float] = field(default_factory=dict)
    found: list[tuple[float, tuple[PlacedRun, ...], str, int]] = field(default_factory=list)

    def price(self, runs: tuple[PlacedRun, ...], schedule: str, microbatches: int) -> float:
        key = (schedule, microbatches, *((r.first, r.end, r.stage, r.mesh, r.point.cost) for r in runs))
        if key not in self.seen:
            self.simulated += 1
            found = price_pipeline(self.problem, runs, schedule, microbatches)
            self.seen[key] = inf if found is None else found.step_s
            if found is not None:
                self.found.append((found.step_s, runs, schedule, microbatches))
            if found is not None and found.step_s < self.best_s:
                self.best_s, self.best = found.step_s, (runs, schedule, microbatches, found)
        return self.seen[key]

    def others(self) -> tuple[Pipelined, ...]:
        """The next best, the best of each schedule first."""
        ordered = sorted(self.found, key=lambda entry: entry[0])[1:]
        firsts = {entry[2]: entry for entry in reversed(ordered)}
        picked = sorted(firsts.values(), key=lambda entry: entry[0])
        picked += [entry for entry in ordered if all(entry is not other for other in picked)]
        return tuple(entry[1:] for entry in picked[:FIRST])

    @property
    def spent(self) -> bool:
        """Whether enough was simulated, interleaved pipelines aside."""
        return self.simulated - self.interleaved >= self.budget


def solve_stages(
    problem: StageProblem,
    budget: int = SIMULATIONS,
    incumbent_s: float = inf,
    made: Mapping[int, StageOptions | None] | None = None,
    interleaved: Mapping[int, StageOptions | None] | None = None,
    propose: Callable[[Bound], Iterable[tuple[PlacedRun, ...]]] | None = None,
) -> StageSolution | None:
    """The fastest pipeline by simulation, and a lower bound; None where none is faster than `incumbent_s`.

    budget: simulations for each number of micro-batches.
    made: the rows for each number of micro-batches, where they are made already.
    interleaved: those for interleaved schedules, where they differ.
    propose: pipelines of one schedule and number of micro-batches to simulate in place of the dynamic programme's;
    they prove nothing.
    """
    problem.verify()
    search = _Search(problem, budget * len(problem.microbatches), incumbent_s)
    if made is None:
        made = {count: options(problem, count) for count in problem.microbatches}
    families = [
        _Family(Bound(problem, found, schedule, count))
        for schedule in problem.schedules
        if schedule != "interleaved"
        for count, found in made.items()
        if found is not None
    ]
    unfinished_s = _interleaved(problem, search, interleaved or made) if "interleaved" in problem.schedules else inf
    for family in families:
        family.low_s = family.bound.least_s() * (1 - CLOSE)
    for family in sorted(families, key=lambda family: family.low_s):
        if propose:
            _simulate(family, search, propose(family.bound))
            continue
        _lowest(family, search.best_s)
        if family.may(search.best_s):
            _simulate(family, search, islice(family.bound.walk(family.high_s, few=True), FIRST))
    for family in sorted(families, key=lambda family: family.low_s):
        if not propose and family.may(search.best_s):
            _walk(family, search)
    unfinished_s = min(unfinished_s, _later(problem, search, made))
    low_s = min([family.low_s for family in families] + [unfinished_s, search.best_s])
    if search.best is None:
        if incumbent_s == inf:
            raise PlanError(_why(problem), "devices and memory for at least one pipeline", "raise the memory limit")
        return None
    runs, schedule, microbatches, timeline = search.best
    proven = low_s >= search.best_s
    promising = _promising(problem, runs, search.best_s, made) if problem.later else ()
    others = search.others()
    return StageSolution(runs, schedule, microbatches, timeline, low_s, proven, search.simulated, others, promising)


def any_within(problem: StageProblem, limit_s: float, made: Made, interleaved: Made) -> bool:
    """Whether the bounds leave any pipeline that is faster; nothing is simulated."""
    for schedule in (*problem.schedules, *problem.later):
        for count, rows in (interleaved if schedule == "interleaved" else made).items():
            if rows is None:
                continue
            if schedule == "interleaved":
                shapes = interleavings(problem)
                least = (Interleaved(problem, rows, count, *shape).least_s() for shape in shapes)
                if any(least_s < limit_s for least_s in least):
                    return True
                continue
            bound = Bound(problem, rows, schedule, count)
            if bound.least_s() * (1 - CLOSE) < limit_s and bound.possible(limit_s):
                return True
    return False


def _why(problem: StageProblem) -> str:
    memory = max(mesh.memory_bytes for mesh in problem.meshes)
    return (
        f"no pipeline of {counted(problem.segments, 'segment')} on {' + '.join(map(str, problem.devices))} devices "
        f"fits into {memory:,} bytes each"
    )


def _lowest(family: _Family, best_s: float) -> None:
    """Bracket the least T between low_s, which is impossible, and high_s, which is possible."""
    bound = family.bound
    low_s = family.low_s
    if low_s >= best_s:
        return
    if best_s < inf:
        high_s = best_s
        if not bound.possible(high_s):
            family.low_s = best_s
            return
    else:
        high_s = low_s
        while not bound.possible(high_s):
            if high_s > bound.most_s:
                family.low_s = inf  # not for any T: memory or devices are too few
                return
            low_s, high_s = high_s, 2 * high_s
    while high_s - low_s > CLOSE * high_s:
        middle_s = (low_s + high_s) / 2
        if bound.possible(middle_s):
            high_s = middle_s
        else:
            low_s = middle_s
    family.low_s, family.high_s = low_s, high_s


def _simulate(family: _Family, search: _Search, found: Iterable[tuple[PlacedRun, ...]]) -> None:
    for runs in found:
        if search.spent:
            return
        search.price(runs, family.bound.schedule, family.bound.microbatches)


def _walk(family: _Family, search: _Search) -> None:
    """Simulate what the bound leaves, pipelines with other cuts or meshes before those with other points; all of it
    seen, the family has nothing better any more."""
    few = True
    while search.simulated < search.budget:
        limit_s = search.best_s if search.best_s < inf else 2 * family.high_s
        for runs in family.bound.walk(limit_s, few):
            search.price(runs, family.bound.schedule, family.bound.microbatches)
            if search.simulated >= search.budget:
                return
            if search.best_s < limit_s * (1 - CLOSE):
                break  # a smaller T leaves less to walk
        else:
            if few:
                few = False
                continue
            if search.best_s < inf or not family.bound.possible(limit_s * 2):
                family.low_s = inf
                return
            if limit_s > family.bound.most_s:
                family.low_s = inf  # all of them were
                return
            family.high_s = limit_s


def _interleaved(problem: StageProblem, search: _Search, made: Mapping[int, StageOptions | None]) -> float:
    """Try equal submeshes with several runs each, those first that could be quickest; returns a bound on them, which
    are not walked exhaustively."""
    found: list[tuple[float, int, Interleaved]] = []
    for microbatches, rows in made.items():
        if rows is None:
            continue
        for shape in interleavings(problem):
            one = Interleaved(problem, rows, microbatches, *shape)
            found.append((one.least_s(), len(found), one))
    low_s = min((least_s for least_s, _, _ in found), default=inf)
    last = search.simulated + max(FIRST, search.budget // 2)
    for least_s, _, one in sorted(found, key=lambda entry: entry[:2]):
        if least_s >= search.best_s or search.simulated >= last:
            break
        for candidate in one.pipelines(search.best_s):
            if search.price(candidate, "interleaved", one.microbatches) < inf:
                break
    search.interleaved = search.simulated
    return low_s


def _later(problem: StageProblem, search: _Search, made: Mapping[int, StageOptions | None]) -> float:
    """No pipeline under one of these schedules is faster."""
    low_s = inf
    for schedule in problem.later:
        for count, rows in made.items():
            if rows is not None:
                family = _Family(Bound(problem, rows, schedule, count))
                family.low_s = family.bound.least_s() * (1 - CLOSE)
                _lowest(family, min(low_s, search.best_s))
                low_s = min(low_s, family.low_s)
    return low_s


def _promising(problem: StageProblem, best: tuple[PlacedRun, ...], best_s: float, made: Made) -> tuple[Pipelined, ...]:
    """Of equal stages, of each size one pipeline that fits under 1F1B and that a schedule of its own could make faster
    than the best; those with the lowest bound first."""
    total, ranks = sum(problem.devices), {mesh.ranks for mesh in problem.meshes}
    if problem.sizes is not None or len(problem.devices) > 1:
        return ()
    found: list[tuple[float, Pipelined]] = []
    for size in sorted(ranks):
        number = total // size
        same = len(best) == number and all(problem.meshes[run.mesh].ranks == size for run in best)
        if total % size or same or not problem.least_stages <= number <= problem.stage_limit:
            continue
        equal = replace(problem, sizes=(size,) * number)
        for count, rows in made.items():
            family = _Family(Bound(equal, rows, "1f1b", count, split=True)) if rows is not None else None
            if family is None:
                continue
            family.low_s = family.bound.least_s() * (1 - CLOSE)
            _lowest(family, best_s)
            if family.may(best_s):
                first = next(family.bound.walk(family.high_s, few=True), None)
                found += [(family.high_s, (first, "1f1b", count))] if first else []
    return tuple(one for _, one in sorted(found, key=lambda entry: entry[0]))
