"""What every search for a plan of one stage is given: the program, the limits, and how a chain becomes a Plan."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.effort import Effort
from meshwright.planner.memory.refine import refine
from meshwright.planner.search.mesh_search import FEWER, Assemble, MeshSearch
from meshwright.planner.search_log import SearchRecorder
from meshwright.planner.sharding.model import ShardingModel


@dataclass(frozen=True, slots=True)
class StageTask:
    """method: of activation checkpointing.

    simpler_within: the plan of fewer mesh axes is taken where steps differ by less than this part.
    effort: limits of the search, in work.
    gap: a node is pruned if its bound is within this part of the incumbent.
    """

    program: Program
    budget_bytes: int
    assemble: Assemble
    method: str
    simpler_within: float
    effort: Effort
    gap: float
    log: SearchRecorder

    def refined(self, chain: Chain, shardings: ShardingModel) -> Plan | None:
        """The plan of a sharding, rematerialised within the budget."""
        return refine(self.assemble(chain, shardings), self.program, self.budget_bytes, FEWER, self.method)

    def mesh_search(self, shardings: ShardingModel, incumbent_s: float) -> MeshSearch:
        """The search of one node."""
        offered = (lambda _, ways: ways.curves.options) if self.method == "flat" else None
        return MeshSearch(shardings, self.program, self.budget_bytes, self.assemble, incumbent_s, offered)
