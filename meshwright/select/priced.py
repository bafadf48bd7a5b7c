"""Prices on rows, lambda_r >= 0 per byte, and how they move.

`Steps` takes subgradient steps on the Lagrangian dual. The direction is the excess of the choice that the prices led
to, in units of the row's size, averaged over steps. Only rows that have a price already and the worst row of every
stretch of overfull rows move: of thousands of nearly equal rows a few dozen carry prices. Steps shrink as 1 / k.

`Prices` puts them on the options of a `Problem` in plain numpy; `dual` does the same with kernels.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.problem import Floats, Ints, Problem

FIRST_STEP = 0.02  # of the cost, spread over the rows that move
HALF_LIFE = 50  # steps after which the step has halved
MEMORY = 0.7  # of the averaged direction
# Elimination is exact where a message pass is one of hundreds: its steps are larger and fewer.
EXACT_SPEED = 10.0


class Steps:
    """The prices, and the state of their ascent."""

    def __init__(self, limits: Floats, unit: Floats, speed: float = 1.0) -> None:
        self.limits, self.unit, self.speed = limits, unit, speed
        self.value = np.zeros(len(limits))
        self.direction = np.zeros(len(limits))
        self.count = 0

    def move(self, usage: Floats, cost: float) -> bool:
        """One step for the usage that the prices led to, in proportion to `cost`; False when nothing moves."""
        excess = (usage - self.limits) / self.unit
        gradient = np.where(self.value > 0, excess, 0.0)
        worst = worst_of_stretches(excess)
        gradient[worst] = excess[worst]
        self.count += 1
        self.direction = gradient if self.count == 1 else MEMORY * self.direction + (1 - MEMORY) * gradient
        norm = float(np.sqrt((self.direction**2).sum() * max(1, np.count_nonzero(self.direction))))
        if norm == 0:
            return False
        step = self.speed * FIRST_STEP * cost / (1 + self.speed * self.count / HALF_LIFE)
        self.value = np.maximum(0.0, self.value + step * self.direction / norm / self.unit)
        return True


class Prices:
    """Prices on the rows of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.steps = Steps(problem.limits, row_units(problem.limits, problem.use_bytes), EXACT_SPEED)

    @property
    def value(self) -> Floats:
        return self.steps.value

    @value.setter
    def value(self, price: Floats) -> None:
        self.steps.value = price

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
        total = self.problem.total_cost(choice)
        cost = max(abs(bound), 0.5 * abs(total) if np.isfinite(total) else 0.0, 1e-300)
        return self.steps.move(self.problem.row_usage(choice), cost)


def row_units(limits: Floats, sizes: Floats) -> Floats:
    """A size for every row to measure bytes in: its limit, unless that is infinite or next to nothing."""
    finite = np.isfinite(limits)
    largest = max(float(limits[finite].max(initial=0.0)), float(sizes.max(initial=0.0)), 1e-300)
    return np.maximum(np.where(finite, limits, largest), 1e-3 * largest)


def worst_of_stretches(excess: Floats) -> Ints:
    """The row with the largest excess in every run of rows with positive excess."""
    over = excess > 0
    change = np.flatnonzero(np.diff(np.concatenate(([False], over, [False])).astype(np.int8)))
    runs = zip(change[::2].tolist(), change[1::2].tolist(), strict=True)
    return np.array([low + int(excess[low:high].argmax()) for low, high in runs], dtype=np.int64)
