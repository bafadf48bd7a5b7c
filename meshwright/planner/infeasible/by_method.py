"""When no plan fits: the fewest bytes found in which one does, saving memory in the way a pin names or in any."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.pins.methods import ORDERED
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes
from meshwright.planner.chain.lagrangian import ANY_PRICE, chain_at
from meshwright.planner.infeasible.min_memory import MemoryNeeded
from meshwright.planner.infeasible.no_room import least_where
from meshwright.planner.memory.methods import fixed_ways
from meshwright.planner.memory.nested_sharded import refine_nested
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.refine import least_peak
from meshwright.planner.search.keep_all import Candidate
from meshwright.planner.search.mesh_search import Assemble


def least_by_method(
    candidate: Candidate, program: Program, assemble: Assemble, method: str, refused_bytes: int
) -> MemoryNeeded:
    """Of the sharding that holds least, in the most micro-batches: a budget in which it fits. refused_bytes: one in
    which it does not."""
    shardings = candidate.shardings(candidate.microbatches[-1])
    plan = assemble(chain_at(shardings, ANY_PRICE), shardings)
    if method in ("auto", "flat"):
        return _least_any(plan, program, RematOptions.of(plan, program), method, refused_bytes)
    ways = RematOptions.of(plan, program, ())
    how = "weights and values cut as far as they go"
    if method in ORDERED:
        return MemoryNeeded(_least_ordered(plan, program, ways, method, refused_bytes), how, plan.microbatches)
    picked = fixed_ways(program, ways.curves.plan, ways.curves.options, method)
    return MemoryNeeded(ways.predicted(picked, plan.microbatches).peak_bytes, how, plan.microbatches)


def _least_any(plan: Plan, program: Program, ways: RematOptions, method: str, refused_bytes: int) -> MemoryNeeded:
    """Everything recomputed that can be. On one device, where a search under that limit looks at this sharding and no
    other, in a nested order too."""
    flat = MemoryNeeded(least_peak(ways, plan.microbatches), "everything recomputed", plan.microbatches)
    if method == "flat" or plan.world_size > 1 or flat.bytes <= refused_bytes + 1:
        return flat

    def fits(budget: int) -> bool:
        return budget >= flat.bytes or refine_nested(plan, program, ways, budget) is not None

    nested = least_where(fits, max(refused_bytes, ways.static_bytes), flat.bytes, len(program.segments))
    return min(flat, MemoryNeeded(nested, "layers run forward more than once", plan.microbatches))


def _least_ordered(plan: Plan, program: Program, ways: RematOptions, method: str, refused_bytes: int) -> int:
    """An order is looked for in parts of the budget, so that it may not be found again in no more than it takes."""
    low = max(refused_bytes, ways.static_bytes)

    def fits(budget: int) -> bool:
        return refine_nested(plan, program, ways, budget, method) is not None

    return least_where(fits, low, 2 * low, len(program.segments))


def no_room(method: str, budget_bytes: int, least: MemoryNeeded) -> PlanError:
    pin = f"recompute={method}"
    return PlanError(
        f"no plan with {pin} fits in {budget_bytes:,} bytes ({show_bytes(budget_bytes)})",
        least.against(budget_bytes),
        f"raise the limit, drop the pin {pin} or make the batch smaller",
    )
