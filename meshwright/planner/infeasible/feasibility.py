"""Feasibility tests: whether any plan fits a memory budget.

Each test is one part of the planner that stops at the first plan it finds. The planner accepts a budget exactly where
one of the tests does, because it runs all these parts as long as it has found nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError
from meshwright.pins.methods import ANYWHERE
from meshwright.pins.stages import PipelinePins
from meshwright.plan import Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.lagrangian import ANY_PRICE, chain_at, memory_free_bound_s
from meshwright.planner.effort import FEW, RETRIES
from meshwright.planner.infeasible.min_memory import MemoryNeeded, WorkBudget, needed_by
from meshwright.planner.memory.refine import refine
from meshwright.planner.pipeline.search import PipelineSearch
from meshwright.planner.search.dual_bound import DualBound, best_bound
from meshwright.planner.search.keep_all import Candidate, search
from meshwright.planner.search.mesh_search import Assemble, weighed
from meshwright.planner.search.shard_then_remat import sweep_budgets
from meshwright.planner.search.task import StageTask
from meshwright.planner.sharding.model import ShardingModel
from meshwright.price.parameter import Setting


def feasible_kept(
    candidates: list[Candidate], assemble: Assemble, work: WorkBudget, budget_bytes: int, *, exactly: bool
) -> MemoryNeeded | None:
    """Everything kept (`keep_all.search`), in less where the clock counts more bytes.

    exactly: of a small program, since of others it would take a minute."""
    charge = work.spend_options
    room = budget_bytes
    for _ in range(RETRIES):
        try:
            found = search(candidates, room, first=True, exactly=exactly, hard=exactly, charge=charge).best
        except PlanError:
            return None
        if found is None:
            return None
        plan = assemble(*found)
        if plan.predicted.peak_bytes <= budget_bytes:
            return needed_by(plan)
        room -= plan.predicted.peak_bytes - budget_bytes
    return None


def feasible_jointly(
    task: StageTask, candidates: Sequence[Candidate], work: WorkBudget, budget_bytes: int
) -> MemoryNeeded | None:
    """Sharding and recomputation chosen jointly (`search.joint`), the most micro-batches first."""
    task = replace(task, budget_bytes=budget_bytes)
    for shardings in _sharding_models(candidates, budget_bytes):
        work.spend()
        bound = DualBound(memory_free_bound_s(shardings), 0.0)
        for some in ([shardings], weighed(shardings)[1:]):
            bound = best_bound(some, budget_bytes, float("inf"), bound)
        if bound.seconds == float("inf"):
            continue
        mesh_search = task.mesh_search(shardings, float("inf"))
        mesh_search.probe(bound.price, float("inf"))
        plan = mesh_search.best or mesh_search.fastest(bound.price) or mesh_search.otherwise()
        work.spend(len(mesh_search.traced))
        if plan is not None:
            return needed_by(plan)
    return None


def feasible_by_budgets(
    task: StageTask, candidates: list[Candidate], work: WorkBudget, budget_bytes: int
) -> MemoryNeeded | None:
    """Sharded within larger budgets, then recomputed by the method (`sweep_budgets`)."""
    task = replace(task, budget_bytes=budget_bytes)

    def refined(chain: Chain, shardings: ShardingModel) -> Plan | None:
        work.spend()
        return task.refined(chain, shardings)

    exactly = task.method not in (*ANYWHERE, "flat")
    charge = work.spend_options
    plan = sweep_budgets(candidates, budget_bytes, refined, None, exactly=exactly, first=True, charge=charge)
    return needed_by(plan) if plan else None


def feasible_min_memory(
    task: StageTask, candidates: Sequence[Candidate], work: WorkBudget, budget_bytes: int
) -> MemoryNeeded | None:
    """The leanest sharding of each mesh (`min_memory_plan`).

    Nested orders are tested for small programs alone, since those of long chains take longer than all other tests.
    """
    work.spend(len(candidates))
    small = len(task.program.segments) <= FEW
    plan = min_memory_plan(replace(task, budget_bytes=budget_bytes), candidates, nested=small)
    return needed_by(plan) if plan else None


def min_memory_plan(task: StageTask, candidates: Sequence[Candidate], nested: bool = True) -> Plan | None:
    """The fastest plan on the leanest sharding of any mesh, in the most micro-batches.

    nested: nested orders are tried too, where the method allows them.
    """
    models = (candidate.shardings(candidate.microbatches[-1]) for candidate in candidates)
    plans = (task.assemble(chain_at(shardings, ANY_PRICE), shardings) for shardings in models)
    found = [refine(plan, task.program, task.budget_bytes, method=task.method, nested=nested) for plan in plans]
    return min((plan for plan in found if plan), key=lambda plan: plan.predicted.step_s, default=None)


def feasible_pipeline(
    program: Program,
    cluster: Cluster,
    budget_bytes: int,
    setting: Setting,
    pins: PipelinePins,
    recompute: bool,
    method: str = "auto",
) -> MemoryNeeded | None:
    """Plans of several stages, on devices of so much memory."""
    devices = tuple(replace(one, memory_bytes=budget_bytes + one.reserve_bytes) for one in cluster.devices)
    roomy = replace(cluster, devices=devices)
    search = PipelineSearch(program, roomy, budget_bytes, setting, pins, recompute=recompute, first=True, method=method)
    plan = search.finish()
    return needed_by(plan) if plan else None


def _sharding_models(candidates: Sequence[Candidate], budget_bytes: int) -> Iterator[ShardingModel]:
    """Every mesh and number of micro-batches whose weights leave room for activations."""
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
