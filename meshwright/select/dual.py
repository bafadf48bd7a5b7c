"""Lower bounds for large cores: ascent on the dual  max over lambda >= 0 of  TRW(c + prices) - sum_r lambda_r limit_r.

Between two TRW-S passes (`kernels.trws`) the prices take a step (`priced.Steps`) for the choice the pass decodes. Any
prices and any messages give a valid bound; the best is kept, with its prices.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.kernels import rows, trws
from meshwright.select.kernels.arrays import Arrays
from meshwright.select.priced import Steps, row_units
from meshwright.select.problem import Ints


class Ascent:
    """The state of the ascent: messages, prices, the best bound with its prices, the last decoded choice."""

    def __init__(self, a: Arrays) -> None:
        self.a = a
        self.at = trws.message_at(a)
        self.messages = np.zeros(int(self.at[-1]))
        self.beliefs = np.zeros(len(a.costs))
        self.prices = Steps(a.limits, row_units(a.limits, a.bytes))
        self.usage = np.zeros(len(a.limits))
        self.total = np.zeros(len(a.limits) + 1)
        self.x: Ints = np.zeros(len(a.offsets) - 1, dtype=np.int64)
        self.bound = -np.inf
        self.best_price = self.prices.value
        self.passes = 0
        self.work = int((a.kinds * a.kinds[a.back]).sum() + 3 * (np.diff(a.start) * np.diff(a.offsets)).sum())

    def step(self) -> int:
        """One pass and one price step; returns elementary steps done."""
        price = self.prices.value
        rows.fill_running(price, self.total)
        value = trws.both_ways(self.a, self.at, self.messages, self.total, self.beliefs, self.x)
        value -= float((price * self.a.limits).sum())
        if value > self.bound:
            self.bound, self.best_price = value, price
        self.passes += 1
        rows.fill_usage(self.a, self.x, self.usage)
        self.prices.move(self.usage, max(abs(self.bound), 0.5 * abs(rows.total_cost(self.a, self.x))))
        return self.work + len(self.a.bytes) + len(price)
