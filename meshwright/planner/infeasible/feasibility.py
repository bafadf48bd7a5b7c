"""Whether anything fits: the parts of the planner, each stopping at the first plan that it finds.

What one of these accepts the whole planner accepts, since it looks there too as long as it has found nothing; and it
refuses what all of them refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError
from meshwright.pins.methods import FIXED, ORDERED
from meshwright.pins.stages import PipelinePins
from meshwright.plan import Plan
from meshwright.planner.chain.lagrangian import ANY_PRICE, chain_at, memory_free_bound_s
from meshwright.planner.chain.mix import Chain
from meshwright.planner.effort import EXACT
from meshwright.planner.infeasible.min_memory import MemoryNeeded, WorkBudget, needed_by
from meshwright.planner.memory.by_method import refine_by
from meshwright.planner.memory.nested_sharded import refine_nested
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.refine import refine, refine_ways
from meshwright.planner.pipeline.search import PipelineSearch
from meshwright.planner.search.dual_bound import DualBound, best_bound
from meshwright.planner.search.keep_all import Candidate, search
from meshwright.planner.search.mesh_search import FEWER, Assemble, MeshSearch, weighed
from meshwright.planner.search.shard_then_remat import sweep_budgets
from meshwright.planner.sharding.model import ShardingModel
from meshwright.price.parameter import Setting


class _EnoughError(Exception):
    """Carries the first plan of a search that would look for more."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan


def feasible_kept(candidates: list[Candidate], budget_bytes: int, *, program: Program) -> MemoryNeeded | None:
    """With everything kept (`search`); to the byte for small programs alone, of others a question takes a minute."""
    small = len(program.segments) <= EXACT
    try:
        found = search(candidates, budget_bytes, first=True, exactly=small, hard=small).best
    except PlanError:
        return None
    return MemoryNeeded(found[0].peak_bytes, "everything kept", found[0].microbatches) if found else None


def feasible_jointly(
    candidates: Sequence[Candidate],
    budget_bytes: int,
    *,
    program: Program,
    assemble: Assemble,
    flat: bool,
    work: WorkBudget,
) -> MemoryNeeded | None:
    """With what is sharded and what is recomputed chosen together (`joint`), the most micro-batches first."""
    offered = (lambda _, ways: ways.curves.options) if flat else None
    for shardings in _sharding_models(candidates, budget_bytes):
        work.spend()
        bound = DualBound(memory_free_bound_s(shardings), 0.0)
        for some in ([shardings], weighed(shardings)[1:]):
            bound = best_bound(some, budget_bytes, float("inf"), bound)
        if bound.seconds == float("inf"):
            continue
        together = MeshSearch(shardings, program, budget_bytes, assemble, float("inf"), offered)
        plan = together.fastest(bound.price) or together.otherwise()
        work.spend(len(together.met))
        if plan is not None:
            return needed_by(plan)
    return None


def feasible_by_budgets(
    candidates: list[Candidate],
    budget_bytes: int,
    *,
    program: Program,
    assemble: Assemble,
    method: str,
    work: WorkBudget,
) -> MemoryNeeded | None:
    """Sharded under larger budgets first, memory then saved by the method (`sweep`)."""
    ours = method in ("auto", "flat")

    def refined(chain: Chain, shardings: ShardingModel) -> Plan | None:
        work.spend()
        plan = assemble(chain, shardings)
        if ours:
            found = refine(plan, program, budget_bytes, FEWER, flat=method == "flat")
        else:
            found = refine_by(plan, program, budget_bytes, method)
        if found is not None:
            raise _EnoughError(found)
        return None

    try:
        sweep_budgets(candidates, budget_bytes, refined, None, exactly=not ours, to_the_end=not ours)
    except _EnoughError as enough:
        return needed_by(enough.plan)
    return None


def feasible_min_memory(
    candidates: Sequence[Candidate],
    budget_bytes: int,
    *,
    program: Program,
    assemble: Assemble,
    method: str,
    work: WorkBudget,
) -> MemoryNeeded | None:
    """Of the shardings that hold least (`min_memory_plan`); nested orders of small programs alone, whose minimum is
    named to the byte: those of long chains take longer than all other questions together."""
    work.spend(len(candidates))
    small = len(program.segments) <= EXACT
    plan = min_memory_plan(candidates, budget_bytes, program, assemble, method, nested=small)
    return needed_by(plan) if plan else None


def min_memory_plan(
    candidates: Sequence[Candidate],
    budget_bytes: int,
    program: Program,
    assemble: Assemble,
    method: str,
    nested: bool = True,
) -> Plan | None:
    """The fastest of the shardings that hold least, in the most micro-batches, memory saved by the method: what is left
    where nothing else fits. nested: in nested orders too, where the method allows them."""
    found = []
    for candidate in candidates:
        shardings = candidate.shardings(candidate.microbatches[-1])
        plan = assemble(chain_at(shardings, ANY_PRICE), shardings)
        if method in ORDERED or method in FIXED:
            found.append(refine_by(plan, program, budget_bytes, method))
        elif plan.predicted.static_bytes <= budget_bytes:
            ways = RematOptions.of(plan, program)
            flat = refine_ways(plan, program, ways, budget_bytes, ways.curves.options if method == "flat" else None)
            deeper = nested and flat is None and method == "auto"
            found.append(refine_nested(plan, program, ways, budget_bytes) if deeper else flat)
    return min((plan for plan in found if plan), key=lambda plan: plan.predicted.step_s, default=None)


def feasible_pipeline(
    program: Program,
    cluster: Cluster,
    budget_bytes: int,
    setting: Setting,
    asked: PipelinePins,
    recompute: bool,
    method: str,
    remat: str = "auto",
) -> MemoryNeeded | None:
    """In several stages, on devices that have so much memory."""
    devices = tuple(replace(one, memory_bytes=budget_bytes + one.reserve_bytes) for one in cluster.devices)
    roomy = replace(cluster, devices=devices)
    given = program, roomy, budget_bytes, setting, asked
    plan = PipelineSearch(*given, recompute=recompute, method=method, first=True, remat=remat).finish()
    return needed_by(plan) if plan else None


def _sharding_models(candidates: Sequence[Candidate], budget_bytes: int) -> Iterator[ShardingModel]:
    """Of every mesh and number of micro-batches whose weights leave room."""
    for candidate in candidates:
        numbers = []
        for number in candidate.microbatches:
            try:
                shardings = candidate.shardings(number).recomputing()
            except PlanError:
                continue
            if shardings.least_static() > budget_bytes:
                break  # nor is there less of it in more of them
            numbers.append(number)
        yield from (candidate.shardings(number).recomputing() for number in reversed(numbers))
