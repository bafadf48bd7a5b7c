"""Row prices in plain numpy, for cores small enough not to need kernels; the rules are those of `dual`."""

from __future__ import annotations

import numpy as np

from meshwright.select.problem import Floats, Ints, Problem

FIRST_STEP = 0.02  # of the cost, spread over the rows that move
HALF_LIFE = 50  # steps after which the step has halved
MEMORY = 0.7  # of the averaged direction


def worst_of_stretches(excess: Floats) -> Ints:
    """The row with the largest excess in every run of rows with positive excess."""
    over = excess > 0
    change = np.flatnonzero(np.diff(np.concatenate(([False], over, [False])).astype(np.int8)))
    runs = zip(change[::2].tolist(), change[1::2].tolist(), strict=True)
    return np.array([low + int(excess[low:high].argmax()) for low, high in runs], dtype=np.int64)


class Prices:
    """lambda_r >= 0 per row, moved by subgradient steps."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.value = np.zeros(len(problem.limits))
        self.direction = np.zeros(len(problem.limits))
        self.steps = 0
        finite = problem.limits[np.isfinite(problem.limits)]
        largest = max(float(finite.max(initial=0.0)), float(problem.use_bytes.max(initial=0.0)), 1e-300)
        self.unit = np.maximum(np.where(np.isfinite(problem.limits), problem.limits, largest), 1e-3 * largest)

    def of_options(self) -> Floats:
        """What the bytes of every option cost."""
        running = np.concatenate(([0.0], np.cumsum(self.value)))
        p = self.problem
        rate = running[p.use_end] - running[p.use_begin]
        paid = np.zeros(len(p.costs))
        np.add.at(paid, p.use_option, rate * p.use_bytes)
        return paid

    def of_limits(self) -> float:
        priced = self.value > 0
        return float((self.value[priced] * self.problem.limits[priced]).sum())

    def step(self, choice: Ints, bound: float) -> bool:
        """Moves prices for the choice they led to; False when there is nothing to move."""
        excess = (self.problem.row_usage(choice) - self.problem.limits) / self.unit
        gradient = np.where(self.value > 0, excess, 0.0)
        worst = worst_of_stretches(excess)
        gradient[worst] = excess[worst]
        self.steps += 1
        self.direction = gradient if self.steps == 1 else MEMORY * self.direction + (1 - MEMORY) * gradient
        norm = float(np.sqrt((self.direction**2).sum() * max(1, np.count_nonzero(self.direction))))
        if norm == 0:
            return False
        total = self.problem.total_cost(choice)
        cost = max(abs(bound), 0.5 * abs(total) if np.isfinite(total) else 0.0, 1e-300)
        step = 10 * FIRST_STEP * cost / (1 + 10 * self.steps / HALF_LIFE)
        self.value = np.maximum(0.0, self.value + step * self.direction / norm / self.unit)
        return True
