"""What every search for a plan of one stage is given: the program, the limits, and how a chain becomes a Plan."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.effort import Effort
from meshwright.planner.memory.methods import all_kept
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.refine import Options, refine
from meshwright.planner.search.mesh_search import FEWER, Assemble, MeshSearch, Offered
from meshwright.planner.search_log import SearchRecorder
from meshwright.planner.sharding.model import ShardingModel
from meshwright.remat.curve import RematPoint


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
        offered = OFFERED.get(self.method)
        shardings = shardings.recomputing(self.method != "keep")
        return MeshSearch(shardings, self.program, self.budget_bytes, self.assemble, incumbent_s, offered, self.method)


def _kept_alone(_: Plan, ways: RematOptions) -> Options:
    made: dict[int, list[RematPoint]] = {}  # of alike segments, which share their options
    for options in ways.curves.options:
        if id(options) not in made:
            made[id(options)] = all_kept([options])
    return tuple(made[id(options)] for options in ways.curves.options)


OFFERED: dict[str, Offered] = {"flat": lambda _, ways: ways.curves.options, "keep": _kept_alone}
"""The rematerialisation points that a method allows; by any other, all and offloading."""
