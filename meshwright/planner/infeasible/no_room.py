"""The words of a budget that is too small, and the search for one that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshwright.errors import PlanError
from meshwright.plan.units import show_bytes, show_enough
from meshwright.planner.effort import EXACT, NEAR


class NoRoomError(PlanError):
    """least_bytes: what the message names, for which there is a plan; how: what that plan does besides."""

    def __init__(self, given: str, expected: str, todo: str, least_bytes: int, how: str = "") -> None:
        super().__init__(given, expected, todo)
        self.least_bytes, self.how = least_bytes, how


def least_where(fits: Callable[[int], bool], low: int, high: int, segments: int) -> int:
    """A budget that fits where a little less does not. low: one that does not fit; high is doubled until it does."""
    while not fits(high):
        low, high = high, 2 * high
    while high - low > (1 if segments <= EXACT else max(1, int(NEAR * high))):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Least:
    """Small budgets that have a plan. flat: where every segment runs forward once and nothing leaves the device, and
    proven; away: where values may wait on the host; all: the smallest that was found by the method."""

    flat: int
    away: int
    all: int

    def refusal(self, budget: int, device: str, static_bytes: int, chunks: int, method: str = "auto") -> NoRoomError:
        """static_bytes: of parameters, optimizer and batch; chunks: the most of the tail."""
        tail = f", the tail in {chunks} chunks" if chunks > 1 and method != "rotor" else ""
        auto = "" if method == "auto" else "leave the method to auto, "
        asked = "" if method == "auto" else f" with recompute={method}"
        size = f"{self.all:,} bytes ({show_enough(self.all)})"
        again = "in the order that takes least" if method in ("rotor", "nested") else f"everything recomputed{tail}"
        return NoRoomError(
            f"no plan fits{asked} in {show_bytes(budget)} on one device ({device})",
            f"{f'at least {size}' if method == 'flat' else f'{size} are enough'}: {show_bytes(static_bytes)} of "
            f"parameters, optimizer and batch, {again}{self._more(method)}",
            f"raise the limit, {auto}make the batch smaller",
            self.all,
            self._more(method),
        )

    def _more(self, method: str) -> str:
        if self.all == self.flat or method != "auto":
            return ""
        how = "values wait on the host" if self.all == self.away else "layers run forward more than once"
        return f", {how}"
