"""What a search did to find a plan: its nodes, their bounds, the incumbents, and why nodes were pruned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.errors import counted
from meshwright.plan.units import show_part, show_seconds

ENDS = ("expanded", "stopped", "pruned")
SEARCH = "the search"
"""What an event is of that is of no node."""
INTERRUPTED = "interrupted: the best plan found so far"
"""Why a search ended that was asked to, as by Ctrl-C."""
ASKED = "a gap of "


def asked_for(gap: float, proven: float) -> str:
    """That a search ended before the gap was proven that was asked for. proven: the gap that is."""
    known = f"{proven:.2%} is proven" if proven < 1 else "no bound is known"
    return f"{ASKED}{show_part(gap)} was asked for; {known}"


@dataclass(frozen=True, slots=True)
class SearchEvent:
    """One line of a search log.

    node: a mesh or a pipeline, with its number of micro-batches, or `SEARCH`.
    what: `incumbent` (the best plan so far), `expanded` (searched), `pruned` (no plan there is faster, or none fits) or
    `stopped` (left, or not searched to its end, without such a proof).
    why: in words.
    bound_s: no plan of the node is faster; None where none was computed.
    step_s: of the best plan that was found there; None where there is none.
    """

    node: str
    what: str
    why: str = ""
    bound_s: float | None = None
    step_s: float | None = None

    def __str__(self) -> str:
        step = f"step {show_seconds(self.step_s)}" if self.step_s is not None else ""
        bound = f"bound {show_seconds(self.bound_s)}" if self.bound_s is not None else ""
        return f"{self.what:<9}  {self.node}: {', '.join(filter(None, (step, bound, self.why)))}"


@dataclass(frozen=True, slots=True)
class SearchLog:
    """The events of a search, in order. `print(plan.search_log)` shows them, a line each."""

    events: tuple[SearchEvent, ...] = ()

    def __iter__(self) -> Iterator[SearchEvent]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.events), self.summary]) if self.events else "no search was logged"

    @property
    def interrupted(self) -> bool:
        return any(event.why == INTERRUPTED for event in self.events)

    @property
    def unproven(self) -> str:
        """Which gap was asked for and is not proven; empty where it is, or none was."""
        whys = (event.why for event in self.events if event.node == SEARCH)
        return next((why for why in whys if why.startswith(ASKED)), "")

    @property
    def summary(self) -> str:
        """How many nodes met which end: one that was expanded counts as such whatever followed."""
        left = {event.node for event in self.events if event.what != "incumbent" and event.node != SEARCH}
        parts = []
        for word in ENDS:
            ended = left & {event.node for event in self.events if event.what == word}
            parts += [f"{len(ended)} {word}"] if ended else []
            left -= ended
        found = sum(event.what == "incumbent" for event in self.events)
        return f"nodes: {', '.join(parts) or 'none'}; {counted(found, 'incumbent')}"
