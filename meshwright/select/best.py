"""The best choice and bound of one core, in one place, reported as they improve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.select.budget import Budget
from meshwright.select.problem import Ints, Problem


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
