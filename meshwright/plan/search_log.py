"""What a search did to find a plan: its nodes, their bounds, the incumbents, and why nodes were pruned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.errors import counted
from meshwright.plan.units import show_seconds

ENDS = ("expanded", "stopped", "pruned")
INTERRUPTED = "interrupted: the best plan found so far"
"""Why a search ended that was asked to, as by Ctrl-C."""


@dataclass(frozen=True, slots=True)
class SearchEvent:
    """One line of a search log.

    node: a mesh or a pipeline, with its number of micro-batches.
    what: `incumbent` (the best plan so far), `expanded` (searched), `pruned` or `stopped`.
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
    def summary(self) -> str:
        """How many nodes met which end: one that was expanded counts as such whatever followed."""
        left = {event.node for event in self.events if event.what != "incumbent"}
        parts = []
        for word in ENDS:
            ended = left & {event.node for event in self.events if event.what == word}
            parts += [f"{len(ended)} {word}"] if ended else []
            left -= ended
        found = sum(event.what == "incumbent" for event in self.events)
        return f"nodes: {', '.join(parts) or 'none'}; {counted(found, 'incumbent')}"
