"""How long a solve may go on: seconds of wall time, or units of work for runs that must repeat exactly. And the best
choice and bound of one core, in one place, reported as they improve.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from meshwright.select.problem import Ints, Problem
from meshwright.select.selection import Progress, relative_gap

REPORT_EVERY_S = 0.2
# Benchmarks on a busy machine put CPU time in its place.
clock: Callable[[], float] = time.perf_counter


@dataclass(slots=True)
class Budget:
    """Also the place where the best cost and bound meet, so that every part can see whether the wanted gap is reached.

    A unit of work is about a million elementary steps. With `work` given the clock is never asked, so that the same
    seed takes the same path on any machine.
    """

    seconds: float
    work: float | None = None
    gap: float = 0.0
    on_progress: Callable[[Progress], None] | None = None
    started: float = field(default_factory=lambda: clock())
    spent: float = 0.0
    cost: float = float("inf")
    bound: float = float("-inf")
    told: float = float("-inf")

    def elapsed(self) -> float:
        return clock() - self.started

    def used(self) -> float:
        """Seconds, or units of work."""
        return self.elapsed() if self.work is None else self.spent

    def left(self) -> float:
        """Seconds left, or units of work left."""
        return (self.seconds if self.work is None else self.work) - self.used()

    def fraction(self) -> float:
        """The part of the budget that is used up, from 0 to 1."""
        whole = self.seconds if self.work is None else self.work
        return min(1.0, max(0.0, 1.0 - self.left() / whole)) if whole > 0 else 1.0

    def charge(self, steps: float) -> None:
        self.spent += steps * 1e-6

    def share(self, part: float) -> Budget:
        """A budget for a part of the problem: this part of what is left, and nothing reported."""
        left = max(0.0, self.left()) * part
        if self.work is None:
            return Budget(seconds=left, gap=self.gap)
        return Budget(seconds=self.seconds, work=left, gap=self.gap)

    def closed(self) -> bool:
        """The wanted gap is proven."""
        return relative_gap(self.cost, self.bound) <= max(self.gap, 1e-9)

    def over(self) -> bool:
        return self.left() <= 0 or self.closed()

    def report(self, stage: str, *, cost: float | None = None, bound: float | None = None) -> None:
        """Takes note of a better cost or bound and tells who asked to be told."""
        better = (cost is not None and cost < self.cost) or (bound is not None and bound > self.bound)
        first = cost is not None and self.cost == float("inf")
        self.cost = min(self.cost, cost) if cost is not None else self.cost
        self.bound = max(self.bound, bound) if bound is not None else self.bound
        if self.on_progress is not None and better and (first or self.elapsed() - self.told > REPORT_EVERY_S):
            self.told = self.elapsed()
            self.on_progress(Progress(self.elapsed(), self.cost, self.bound, stage))


@dataclass(slots=True)
class Best:
    """The best feasible choice so far and the best bound, both without `constant`, which reports add."""

    problem: Problem
    budget: Budget
    constant: float
    choice: Ints
    cost: float = np.inf
    bound: float = -np.inf

    def offer(self, choice: Ints, stage: str) -> bool:
        """Takes the choice if it is feasible and better."""
        cost = self.problem.total_cost(choice)
        if not cost < self.cost or self.problem.worst_row(choice)[0] >= 0:
            return False
        self.choice, self.cost = np.array(choice, dtype=np.int64), cost
        self.budget.report(stage, cost=cost + self.constant)
        return True

    def raise_bound(self, bound: float, stage: str) -> None:
        self.bound = max(self.bound, bound)
        self.budget.report(stage, bound=min(self.bound, self.cost) + self.constant)

    def note(self, bound: float | None, choice: list[int] | None) -> None:
        """What HiGHS reports."""
        if choice is not None:
            self.offer(np.array(choice), "HiGHS")
        if bound is not None and np.isfinite(bound):
            self.raise_bound(bound, "HiGHS")
