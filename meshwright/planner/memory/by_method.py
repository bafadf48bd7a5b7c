"""Plans under a named rematerialisation method (`memory.methods`), pinned by `recompute=NAME`.

Shardings are found first, under several budgets (`sweep_budgets`); the method is applied to each, and the fastest plan
that fits is taken. With `rotor` that is Colossal-Auto.
"""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.pins.methods import ORDERED
from meshwright.plan import Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.lagrangian import ANY_PRICE, chain_at
from meshwright.planner.memory.methods import fixed_ways
from meshwright.planner.memory.nested_sharded import refine_nested
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.refine import refine_ways
from meshwright.planner.search.keep_all import Candidate
from meshwright.planner.search.mesh_search import Assemble
from meshwright.planner.search.shard_then_remat import sweep_budgets
from meshwright.planner.sharding.model import ShardingModel


def method_search(
    candidates: list[Candidate],
    program: Program,
    budget_bytes: int,
    assemble: Assemble,
    method: str,
    exactly: bool = True,
) -> Plan | None:
    """The fastest plan that fits; where none of the sweep does, of the shardings with the fewest held bytes.

    exactly: as for `solve_chain`.
    """

    def refined(chain: Chain, shardings: ShardingModel) -> Plan | None:
        return refine_by(assemble(chain, shardings), program, budget_bytes, method)

    best = sweep_budgets(candidates, budget_bytes, refined, None, exactly, to_the_end=True)
    for candidate in candidates if best is None else ():
        shardings = candidate.shardings(candidate.microbatches[-1])
        plan = refined(chain_at(shardings, ANY_PRICE), shardings)
        if plan is not None and (best is None or plan.predicted.step_s < best.predicted.step_s):
            best = plan
    return best


def refine_by(plan: Plan, program: Program, budget_bytes: int, method: str) -> Plan | None:
    """The plan with the same sharding under this method; None where it does not fit."""
    if plan.predicted.static_bytes > budget_bytes:
        return None
    ways = RematOptions.of(plan, program, ())
    if method in ORDERED:
        return refine_nested(plan, program, ways, budget_bytes, method)
    picked = fixed_ways(program, ways.curves.plan, ways.curves.options, method)
    return refine_ways(plan, program, ways, budget_bytes, [(kept,) for kept in picked])
