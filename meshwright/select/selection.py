"""What a solve returns, and what it reports on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.select.problem import Problem


@dataclass(frozen=True, slots=True)
class Selection:
    """One option per node. When `feasible` is False, `choice` is the least bad one found and `over` says what is
    wrong with it.
    """

    choice: tuple[int, ...]
    cost: float
    bound: float  # no choice costs less
    gap: float  # (cost - bound) / |cost|
    seconds: float
    method: str
    feasible: bool
    over: tuple[int, float] = (-1, 0.0)  # row furthest over its limit, bytes over
    done: tuple[str, ...] = ()  # what was done, in order

    def __str__(self) -> str:
        if not self.feasible:
            row, size = self.over
            where = f"row {row} is over by {size:.6g} bytes" if row >= 0 else "a forbidden pair remains"
            return f"no feasible choice found in {self.seconds:.2f} s ({self.method}); in the best one {where}"
        return (
            f"cost {self.cost:.12g}, bound {self.bound:.12g}, gap {self.gap:.3%}, {self.seconds:.2f} s ({self.method})"
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """Passed to `on_progress`: the best cost and bound so far, and what is running."""

    seconds: float
    cost: float
    bound: float
    stage: str

    @property
    def gap(self) -> float:
        return relative_gap(self.cost, self.bound)


def relative_gap(cost: float, bound: float) -> float:
    """(cost - bound) / |cost|, at least 0; +inf as long as either is not known."""
    if not (np.isfinite(cost) and np.isfinite(bound)):
        return float("inf")
    return max(0.0, cost - bound) / max(abs(cost), 1e-300)


def judge(problem: Problem, choice: list[int], bound: float, seconds: float, method: str, done: list[str]) -> Selection:
    """The Selection of a choice, its cost and feasibility worked out anew from the problem as it was given."""
    cost = problem.total_cost(choice)
    over = problem.worst_row(choice)
    feasible = over[0] < 0 and bool(np.isfinite(cost))
    lowest = min(bound, cost) if feasible else bound
    gap = relative_gap(cost, lowest) if feasible else float("inf")
    return Selection(tuple(choice), cost, lowest, gap, seconds, method, feasible, over, tuple(done))
