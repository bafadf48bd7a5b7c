"""Branch and bound over pipelines: stages, their submeshes and points, schedule and micro-batches.

A node is one schedule with one micro-batch count. Its lower bound is the least T that the stage programme does not rule
out (`bound`), found by bisection. A node is expanded by simulating its pipelines: the first few at first, then, best
bound first, all whose bound is below the incumbent, as far as the budget of simulations goes. A node with none left is
closed; where every node is, the incumbent is proven.

Interleaved pipelines come first, since they are far ahead where memory is short. They are not enumerated: their bound
stays (`interleaved`).
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
from meshwright.planner.stages.options import StageOptions
from meshwright.planner.stages.price import price_pipeline
from meshwright.planner.stages.problem import Pipelined, PlacedRun, StageProblem, StageSolution
from meshwright.simulate import Timeline

SIMULATIONS, FIRST = EFFORTS["default"].probed, EFFORTS["default"].shardings
"""SIMULATIONS: pipelines simulated for each micro-batch count. FIRST: of these, how many of one node come before any
other is expanded further, and how many runners-up are remembered."""

Rows = Mapping[int, StageOptions | None]
"""The rows of the stage programme for each micro-batch count."""


@dataclass(slots=True)
class _Node:
    """One schedule and micro-batch count.

    low_s: lower bound on the pipelines that are not simulated yet.
    high_s: a T that the stage programme reaches.
    """

    bound: Bound
    low_s: float = 0.0
    high_s: float = inf

    @classmethod
    def of(cls, problem: StageProblem, rows: StageOptions, schedule: str, count: int, split: bool = False) -> _Node:
        bound = Bound(problem, rows, schedule, count, split=split)
        return cls(bound, bound.least_s * (1 - CLOSE))

    def bisect(self, cutoff_s: float) -> None:
        """Brackets the least T between `low_s`, which is impossible, and `high_s`, which is possible.

        cutoff_s: seconds above which the bound is not raised.
        """
        bound, low_s = self.bound, self.low_s
        if low_s >= cutoff_s:
            return
        if cutoff_s < inf:
            high_s = cutoff_s
            if not bound.possible(high_s):
                self.low_s = cutoff_s
                return
        else:
            high_s = low_s
            while not bound.possible(high_s):
                if high_s > bound.most_s:
                    self.low_s = inf  # no T is possible: memory or devices are too few
                    return
                low_s, high_s = high_s, 2 * high_s
        while high_s - low_s > CLOSE * high_s:
            middle_s = (low_s + high_s) / 2
            if bound.possible(middle_s):
                high_s = middle_s
            else:
                low_s = middle_s
        self.low_s, self.high_s = low_s, high_s


@dataclass(slots=True)
class _Incumbent:
    """The fastest pipeline simulated, and what was simulated.

    budget: simulations that are allowed.
    incumbent_s: its step, or one that is known from elsewhere.
    steps: simulated steps, infinite where memory does not suffice.
    """

    problem: StageProblem
    budget: int
    incumbent_s: float
    best: tuple[tuple[PlacedRun, ...], str, int, Timeline] | None = None
    simulated: int = 0
    steps: dict[tuple[object, ...], float] = field(default_factory=dict)
    found: list[tuple[float, tuple[PlacedRun, ...], str, int]] = field(default_factory=list)

    def simulate(self, runs: tuple[PlacedRun, ...], schedule: str, count: int) -> float:
        key = (schedule, count, *((r.first, r.end, r.stage, r.mesh, r.point.cost) for r in runs))
        if key not in self.steps:
            self.simulated += 1
            timeline = price_pipeline(self.problem, runs, schedule, count)
            self.steps[key] = inf if timeline is None else timeline.step_s
            if timeline is not None:
                self.found.append((timeline.step_s, runs, schedule, count))
            if timeline is not None and timeline.step_s < self.incumbent_s:
                self.incumbent_s, self.best = timeline.step_s, (runs, schedule, count, timeline)
        return self.steps[key]

    def simulate_all(self, node: _Node, found: Iterable[tuple[PlacedRun, ...]], last: int) -> None:
        """last: simulations in all, after which it ends."""
        for runs in found:
            if self.simulated >= last:
                return
            self.simulate(runs, node.bound.schedule, node.bound.microbatches)

    def others(self) -> tuple[Pipelined, ...]:
        """The runners-up, the best of each schedule first."""
        ordered = sorted(self.found, key=lambda entry: entry[0])[1:]
        firsts = {entry[2]: entry for entry in reversed(ordered)}
        picked = sorted(firsts.values(), key=lambda entry: entry[0])
        picked += [entry for entry in ordered if all(entry is not other for other in picked)]
        return tuple(entry[1:] for entry in picked[:FIRST])


def solve_stages(
    problem: StageProblem,
    rows: Rows,
    budget: int = SIMULATIONS,
    incumbent_s: float = inf,
    interleaved: Rows | None = None,
    propose: Callable[[Bound], Iterable[tuple[PlacedRun, ...]]] | None = None,
) -> StageSolution | None:
    """The fastest pipeline by simulation, and a lower bound; None where none is faster than `incumbent_s`.

    rows: of the stage programme.
    budget: simulations for each micro-batch count.
    interleaved: rows for interleaved schedules, where they differ.
    propose: pipelines of one node to simulate in place of the dynamic programme's; they prove nothing.
    """
    problem.verify()
    search = _Incumbent(problem, budget * len(problem.microbatches), incumbent_s)
    low_s = _expand_interleaved(problem, search, interleaved or rows) if "interleaved" in problem.schedules else inf
    nodes = [
        node for schedule in problem.schedules if schedule != "interleaved" for node in _nodes(problem, rows, schedule)
    ]
    last = search.simulated + search.budget
    for node in sorted(nodes, key=lambda node: node.low_s):
        if propose:
            search.simulate_all(node, propose(node.bound), last)
            continue
        node.bisect(search.incumbent_s)
        if node.low_s < search.incumbent_s:
            search.simulate_all(node, islice(node.bound.walk(node.high_s, few=True), FIRST), last)
    for node in sorted(nodes, key=lambda node: node.low_s):
        if not propose and node.low_s < search.incumbent_s:
            _expand(node, search)
    for schedule in problem.later:
        for node in _nodes(problem, rows, schedule):
            node.bisect(min(low_s, search.incumbent_s))
            low_s = min(low_s, node.low_s)
    low_s = min([node.low_s for node in nodes] + [low_s, search.incumbent_s])
    if search.best is None:
        if incumbent_s == inf:
            raise PlanError(_why(problem), "devices and memory for at least one pipeline", "raise the memory limit")
        return None
    runs, schedule, count, timeline = search.best
    proven = low_s >= search.incumbent_s
    promising = _promising(problem, runs, search.incumbent_s, rows) if problem.later else ()
    return StageSolution(runs, schedule, count, timeline, low_s, proven, search.others(), promising)


def _nodes(problem: StageProblem, rows: Rows, schedule: str) -> list[_Node]:
    return [_Node.of(problem, found, schedule, count) for count, found in rows.items() if found is not None]


def _interleaved(problem: StageProblem, rows: Rows) -> list[Interleaved]:
    return [
        Interleaved(problem, found, count, *shape)
        for count, found in rows.items()
        if found is not None
        for shape in interleavings(problem)
    ]


def any_within(problem: StageProblem, limit_s: float, rows: Rows, interleaved: Rows) -> bool:
    """Whether the bounds leave any pipeline that is faster; nothing is simulated."""
    for schedule in (*problem.schedules, *problem.later):
        if schedule == "interleaved":
            if any(one.least_s() < limit_s for one in _interleaved(problem, interleaved)):
                return True
        elif any(node.low_s < limit_s and node.bound.possible(limit_s) for node in _nodes(problem, rows, schedule)):
            return True
    return False


def _why(problem: StageProblem) -> str:
    memory = max(mesh.memory_bytes for mesh in problem.meshes)
    return (
        f"no pipeline of {counted(problem.segments, 'segment')} on {' + '.join(map(str, problem.devices))} devices "
        f"fits into {memory:,} bytes each"
    )


def _expand(node: _Node, search: _Incumbent) -> None:
    """Simulates the pipelines whose bound is below the incumbent, those with other cuts or meshes before those with
    other points. With none left the node is closed."""
    few = True
    while search.simulated < search.budget:
        limit_s = search.incumbent_s if search.incumbent_s < inf else 2 * node.high_s
        for runs in node.bound.walk(limit_s, few):
            search.simulate(runs, node.bound.schedule, node.bound.microbatches)
            if search.simulated >= search.budget:
                return
            if search.incumbent_s < limit_s * (1 - CLOSE):
                break  # fewer are below the new incumbent
        else:
            if few:
                few = False
                continue
            beyond = limit_s > node.bound.most_s
            if search.incumbent_s < inf or beyond or not node.bound.possible(limit_s * 2):
                node.low_s = inf
                return
            node.high_s = limit_s


def _expand_interleaved(problem: StageProblem, search: _Incumbent, rows: Rows) -> float:
    """Simulates interleaved pipelines, best bound first; returns a lower bound on all of them."""
    nodes = [(one.least_s(), place, one) for place, one in enumerate(_interleaved(problem, rows))]
    for least_s, _, one in sorted(nodes, key=lambda node: node[:2]):
        if least_s >= search.incumbent_s or search.simulated >= max(FIRST, search.budget // 2):
            break
        for runs in one.pipelines(search.incumbent_s):
            if search.simulate(runs, "interleaved", one.microbatches) < inf:
                break
    return min((least_s for least_s, _, _ in nodes), default=inf)


def _promising(problem: StageProblem, best: tuple[PlacedRun, ...], best_s: float, rows: Rows) -> tuple[Pipelined, ...]:
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
        for count, made in rows.items():
            if made is None:
                continue
            node = _Node.of(equal, made, "1f1b", count, split=True)
            node.bisect(best_s)
            if node.low_s < best_s:
                first = next(node.bound.walk(node.high_s, few=True), None)
                found += [(node.high_s, (first, "1f1b", count))] if first else []
    return tuple(one for _, one in sorted(found, key=lambda entry: entry[0]))
