"""SearchRecorder: the nodes and incumbents of a search, for `Plan.search_log` and for progress lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite

from meshwright.errors import counted
from meshwright.plan.search_log import SEARCH, SearchEvent, SearchLog
from meshwright.plan.units import show_bytes
from meshwright.planner.interrupt import Stop

Progress = Callable[[str], None]


@dataclass(slots=True)
class SearchRecorder:
    """Records events and reports them.

    on_incumbent: called with a line of text for every incumbent.
    on_node: called with the name of every node.
    stop: may end the search from the first incumbent on.
    where: what all nodes have in common from now on, such as what is on the host.
    """

    on_incumbent: Progress | None = None
    on_node: Progress | None = None
    stop: Stop | None = None
    where: str = ""
    events: list[SearchEvent] = field(default_factory=list)

    def incumbent(self, node: str, step_s: float, gap: float | None = None) -> None:
        """A plan that is faster than all before. gap: to the lower bound on plans of one stage."""
        proven = "" if gap is None else f"gap at most {gap:.1%} without pipelines"
        node = self._named(node)
        self.events.append(SearchEvent(node, "incumbent", proven, None, step_s))
        if self.stop:
            self.stop.found = True
        if self.on_incumbent:
            self.on_incumbent(f"{node}: {step_s:.4g} s{', ' + proven if proven else ''}")

    def expanded(self, node: str, why: str, bound_s: float | None = None, step_s: float | None = None) -> None:
        self._add(node, "expanded", why, bound_s, step_s)

    def pruned(self, node: str, why: str, bound_s: float | None = None) -> None:
        self._add(node, "pruned", why, bound_s)

    def stopped(self, node: str, why: str, bound_s: float | None = None) -> None:
        """The search ended here on request or for its limit of effort, or went elsewhere first: not by proof."""
        self._add(node, "stopped", why, bound_s)

    def raised(self, node: str, bound_s: float) -> None:
        """A bound of a node that was pruned is higher than was needed then."""
        node = self._named(node)
        for place, event in enumerate(self.events):
            if event.node == node and event.what == "pruned" and event.bound_s is not None and event.bound_s < bound_s:
                self.events[place] = replace(event, bound_s=bound_s)

    def log(self) -> SearchLog:
        return SearchLog(tuple(self.events))

    def _add(self, node: str, what: str, why: str, bound_s: float | None = None, step_s: float | None = None) -> None:
        node = self._named(node)
        event = SearchEvent(node, what, why, _known(bound_s), _known(step_s))
        if event not in self.events:  # a node may be asked again, with less memory, and answer the same
            self.events.append(event)
        if self.on_node:
            self.on_node(node)

    def _named(self, node: str) -> str:
        return f"{node}, {self.where}" if self.where and node != SEARCH else node


def mesh_node(mesh: str, microbatches: int | None = None) -> str:
    """The name of a node of the search for plans of one stage; of all its nodes on a mesh where no number is given."""
    cut = "any number of micro-batches" if microbatches is None else counted(microbatches, "micro-batch")
    return f"mesh {mesh}, {cut}"


def not_below(cutoff_s: float, incumbent_s: float) -> str:
    """Why a node is pruned whose bound is not below the cutoff."""
    if cutoff_s < incumbent_s:
        return f"its bound is within {1 - cutoff_s / incumbent_s:.2%} of the incumbent"
    return "its bound is not below the incumbent"


def over_budget(needed_bytes: float, budget_bytes: int, of: str) -> str:
    """Why a node is pruned that needs more memory than there is."""
    return f"{of} needs about {show_bytes(int(needed_bytes))}, of {show_bytes(budget_bytes)}"


def _known(seconds: float | None) -> float | None:
    return seconds if seconds is not None and isfinite(seconds) else None
