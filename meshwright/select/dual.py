"""Lower bounds for large cores: ascent on the dual  max over lambda >= 0 of  TRW(c + prices) - sum_r lambda_r limit_r.

Between two TRW-S passes (`kernels.trws`) the prices take a step (`priced.Steps`) for the choice the pass decodes. Any
prices and any messages give a valid bound; the best is kept, with its prices. Once passes alone gain little, short
cycles are added to the relaxation (`kernels.cycles`). Passes and cycles then share the time by what they gain.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.select.cycles import cycles, own_tables
from meshwright.select.kernels import rows, trws
from meshwright.select.kernels.arrays import Arrays
from meshwright.select.kernels.cycles import Cycles, push, tighten
from meshwright.select.priced import Steps, row_units
from meshwright.select.problem import Ints

PASSES = 5  # of a round
STALLED = 1e-3  # of the bound: where a round gains less, cycles are tried
CYCLE_SHARE = 4.0  # steps for cycles per step for passes
FORGET = 1.2  # growth per round of the rate of the other sort of round
LEAST_GAIN = 1e-8  # of the bound, counted for a round that gained nothing


@dataclass(slots=True)
class Rounds:
    """Decides whether the next round of passes begins with cycles, by what rounds of either sort gained per step."""

    never: bool = False  # no cycles
    with_cycles: bool = False
    known: float = -np.inf  # the bound when the round began
    steps: float = 0.0
    rates: list[float] = field(default_factory=lambda: [np.inf, np.inf])  # without cycles, with them

    def end(self, bound: float) -> bool:
        """Ends a round; returns whether the next one has cycles."""
        gain, least = bound - self.known, LEAST_GAIN * abs(bound)
        if not self.never and (self.with_cycles or gain < STALLED * abs(bound) or np.isfinite(self.rates[1])):
            self.rates[self.with_cycles] = max(gain, least) / max(self.steps, 1.0)
            self.rates[not self.with_cycles] *= FORGET
            self.with_cycles = self.rates[1] >= self.rates[0]
        self.known, self.steps = bound, 0.0
        return self.with_cycles


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
        self.cycles: Cycles | None = None
        self.next = 0  # the cycle to be visited next
        self.rounds = Rounds()

    def step(self) -> float:
        """One pass and one price step; before every few passes cycles, where these gain more than passes alone.
        Returns elementary steps done.
        """
        steps = 0.0
        if self.passes and self.passes % PASSES == 0:
            if self.rounds.end(self.bound) and self.cycles is None:
                self._add_cycles()
            if self.rounds.with_cycles:
                steps += self._tighten()
        steps += self._pass()
        self.rounds.steps += steps
        return steps

    def _add_cycles(self) -> None:
        self.cycles = cycles(self.a)
        if self.cycles is None:
            self.rounds = Rounds(never=True)
        else:
            self.a = own_tables(self.a)

    def _tighten(self) -> float:
        assert self.cycles is not None
        push(self.a, self.at, self.messages, self.beliefs)
        quota = CYCLE_SHARE * PASSES * self.work
        self.next, steps = tighten(self.a, self.at, self.messages, self.cycles, self.next, quota)
        return steps + self.work

    def _pass(self) -> float:
        price = self.prices.value
        rows.fill_running(price, self.total)
        value = trws.both_ways(self.a, self.at, self.messages, self.total, self.beliefs, self.x)
        value -= float((price * self.a.limits).sum())
        if value > self.bound:
            self.bound, self.best_price = value, price
        self.passes += 1
        rows.fill_usage(self.a, self.x, self.usage)
        self.prices.move(self.usage, max(abs(self.bound), 0.5 * abs(rows.total_cost(self.a, self.x))))
        return float(self.work + len(self.a.bytes) + len(price))
