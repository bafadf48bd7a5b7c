"""What the rows of a stage programme take at least, in seconds and bytes together.

A Lagrangian relaxation. A row that takes s seconds of a step and b(f) bytes with f micro-batches in flight costs
W(l, f) = min s + l b(f) at l seconds per byte, over all ways to run it. So within T seconds

    b(f) >= (W(l, f) - T) / l      for every price l.

W is concave in f: a chord between two numbers in flight is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.planner.stages.options import Floats


@dataclass(frozen=True, slots=True)
class PricedMemory:
    """prices: in seconds of a step per byte.
    flights: numbers of micro-batches in flight, ascending from 1.
    cost_s: W, by row, price and number in flight.
    free_s: W of each row where memory costs nothing.
    update_s: of each row, seconds of a step that follow all micro-batches and are not in `cost_s`.
    """

    prices: Floats
    flights: Floats
    cost_s: Floats
    free_s: Floats
    update_s: Floats

    def at(self, flight: float) -> Floats:
        """W by row and price."""
        last = len(self.flights) - 1
        place = min(int(np.searchsorted(self.flights, flight, side="right")) - 1, last)
        if place == last:
            found: Floats = self.cost_s[:, :, last]
            return found
        share = (flight - self.flights[place]) / (self.flights[place + 1] - self.flights[place])
        found = (1 - share) * self.cost_s[:, :, place] + share * self.cost_s[:, :, place + 1]
        return found

    def least_bytes(self, limit_s: float, flight: float) -> Floats:
        """Of each row within so many seconds a step."""
        left_s = limit_s - self.update_s[:, None]
        found: Floats = ((self.at(flight) - left_s) / self.prices).max(axis=1)
        return found

    def most_in_flight(self, limit_s: float, limit_bytes: Floats) -> Floats:
        """Of each row within so many seconds a step and bytes; infinite where `flights` end before."""
        allowed_s = (limit_s - self.update_s)[:, None] + self.prices * limit_bytes[:, None]
        found: Floats = np.where(self.cost_s[:, :, 0] <= allowed_s, self.flights[0], 0.0)
        for place in range(len(self.flights) - 1):
            low, high = self.cost_s[:, :, place], self.cost_s[:, :, place + 1]
            share = np.clip((allowed_s - low) / np.maximum(high - low, 1e-300), 0.0, 1.0)
            found += np.where(low <= allowed_s, share * (self.flights[place + 1] - self.flights[place]), 0.0)
        whole = self.cost_s[:, :, -1] <= allowed_s
        found = np.where(whole, np.inf, found).min(axis=1)
        return found
