"""Prices and lower bounds: ascent on the Lagrangian dual  max over lambda >= 0 of  TRW(c + prices) - sum_r lambda_r
limit_r.

Between two TRW-S passes (`kernels.trws`) the prices take a subgradient step. The direction is the excess of the
choice the pass decodes, in units of the row's limit, averaged over passes; only rows that have a price already and
the worst row of every stretch of overfull rows move, so that of thousands of nearly equal rows a few dozen carry
prices. Any prices and any messages give a valid bound; steps shrink as 1 / k.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.kernels import rows, trws
from meshwright.select.kernels.arrays import Arrays
from meshwright.select.priced import FIRST_STEP, HALF_LIFE, MEMORY, worst_of_stretches
from meshwright.select.problem import Floats, Ints


class Ascent:
    """The state of the ascent: messages, prices, the best bound with its prices, the last decoded choice."""

    def __init__(self, a: Arrays) -> None:
        self.a = a
        self.at = trws.message_at(a)
        self.messages = np.zeros(int(self.at[-1]))
        self.beliefs = np.zeros(len(a.costs))
        self.price = np.zeros(len(a.limits))
        self.direction = np.zeros(len(a.limits))
        self.usage = np.zeros(len(a.limits))
        self.total = np.zeros(len(a.limits) + 1)
        self.unit = row_units(a)
        self.x: Ints = np.zeros(len(a.offsets) - 1, dtype=np.int64)
        self.bound = -np.inf
        self.best_price = self.price.copy()
        self.passes = 0

    def step(self) -> int:
        """One pass and one price step; returns elementary steps done."""
        rows.fill_running(self.price, self.total)
        value = trws.both_ways(self.a, self.at, self.messages, self.total, self.beliefs, self.x)
        value -= float((self.price * self.a.limits).sum())
        if value > self.bound:
            self.bound, self.best_price = value, self.price.copy()
        rows.fill_usage(self.a, self.x, self.usage)
        self.passes += 1
        if len(self.price):
            self._move()
        return 2 * len(self.a.mats) + len(self.a.bytes) + len(self.price)

    def _move(self) -> None:
        excess = (self.usage - self.a.limits) / self.unit
        gradient = np.where(self.price > 0, excess, 0.0)
        worst = worst_of_stretches(excess)
        gradient[worst] = excess[worst]
        self.direction = gradient if self.passes == 1 else MEMORY * self.direction + (1 - MEMORY) * gradient
        norm = float(np.sqrt((self.direction**2).sum() * max(1, np.count_nonzero(self.direction))))
        if norm > 0:
            cost = max(abs(self.bound), 0.5 * abs(rows.total_cost(self.a, self.x)))
            step = FIRST_STEP * cost / (1 + self.passes / HALF_LIFE)
            self.price = np.maximum(0.0, self.price + step * self.direction / norm / self.unit)


def row_units(a: Arrays) -> Floats:
    """A size for every row to measure bytes in: its limit, unless that is next to nothing."""
    if not len(a.limits):
        return a.limits
    largest = max(float(a.limits.max()), float(a.bytes.max(initial=0.0)), 1e-300)
    return np.maximum(a.limits, 1e-3 * largest)
