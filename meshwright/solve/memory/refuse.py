"""The words of a budget that is too small."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import PlanError
from meshwright.plan.units import show_bytes


@dataclass(frozen=True, slots=True)
class Least:
    """The smallest budgets that have a plan. flat: where every segment runs forward once and nothing leaves the device;
    away: where values may wait on the host; all: by whatever means."""

    flat: int
    away: int
    all: int

    def refusal(self, budget: int, device: str, static_bytes: int, chunks: int, method: str = "auto") -> PlanError:
        """static_bytes: of parameters, optimizer and batch; chunks: the most of the tail. The least is that of `auto`,
        whatever was asked for."""
        tail = f", the tail in {chunks} chunks" if chunks > 1 else ""
        auto = "" if method == "auto" else "leave the method to auto, "
        asked = "" if method == "auto" else f" by {method}"
        return PlanError(
            f"no plan fits{asked} in {show_bytes(budget)} on one device ({device})",
            f"at least {self.all:,} bytes ({show_bytes(self.all)}): {show_bytes(static_bytes)} of parameters, "
            f"optimizer and batch, everything recomputed{tail}{self._more()}",
            f"raise the limit, {auto}make the batch smaller, use more devices",
        )

    def _more(self) -> str:
        if self.all == self.flat:
            return ""
        how = "values wait on the host" if self.all == self.away else "segments run forward more than once"
        return f", {how} ({show_bytes(self.flat)} without)"
