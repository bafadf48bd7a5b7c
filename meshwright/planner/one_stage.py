"""Plans of one stage: the whole chain of segments on one mesh of all devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from typing import Any

from meshwright.errors import PlanError
from meshwright.pins.meshes import allowed_meshes
from meshwright.pins.methods import ANYWHERE
from meshwright.pins.parts import pinned_devices
from meshwright.plan import Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.exact import Charge, uncharged
from meshwright.planner.chain.lagrangian import least_bytes
from meshwright.planner.effort import ANY_BYTES, FEW, RETRIES
from meshwright.planner.infeasible.estimate import (
    estimate_by_method,
    estimate_kept,
    larger_cluster,
    training_state_bytes,
    usable_bytes,
)
from meshwright.planner.infeasible.feasibility import (
    feasible_by_budgets,
    feasible_jointly,
    feasible_kept,
    feasible_min_memory,
    min_memory_plan,
)
from meshwright.planner.infeasible.min_memory import (
    FeasibilityTest,
    MemoryNeeded,
    WorkBudget,
    charged,
    minimum_budget,
    needed_by,
)
from meshwright.planner.infeasible.refusals import refuse_method, refuse_one_stage
from meshwright.planner.interrupt import STOP
from meshwright.planner.memory.offload import can_offload
from meshwright.planner.realize import assemble, draft
from meshwright.planner.request import PlanRequest
from meshwright.planner.search.joint import joint_search
from meshwright.planner.search.keep_all import Candidate, SearchResult, anyway, search
from meshwright.planner.search.proof import prove
from meshwright.planner.search.shard_then_remat import sweep_budgets
from meshwright.planner.search.task import StageTask
from meshwright.planner.search_log import SearchRecorder, mesh_node
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.space.candidates import candidates_on, tight_candidates

ROUNDING = 1e-12
"""Gaps below this come from adding the same seconds in another order."""


class OneStageSearch:
    """Search over meshes, micro-batch counts, shardings and rematerialisations of one stage."""

    def __init__(self, request: PlanRequest, pins: tuple[str, ...], method: str, log: SearchRecorder) -> None:
        self.recompute = request.recompute and method != "keep"
        self.request, self.pins, self.method, self.log = request, pins, method if self.recompute else "keep", log
        self.program, self.cluster = request.program, request.cluster
        self.budget = request.budget_bytes
        self.simpler_within = max(request.simpler_within, ROUNDING)
        self._quick = self.recompute
        self.candidates: list[Candidate] = []
        self.jointly: list[Candidate] = []
        self.refused: PlanError | None = None
        self.elsewhere: Callable[[float], Plan | None] | None = None

    def keep_all(self, incumbent: Plan | None, strict: bool) -> SearchResult | None:
        """The search with everything kept; None where no mesh allows the pins, or an error if `strict`."""
        limit_s = incumbent.predicted.step_s if incumbent else inf
        try:
            return self._keep_all(self.budget, limit_s * (1 + self.simpler_within), self._quick)
        except PlanError as error:
            if strict:
                raise
            self.refused = error
            return None

    @property
    def too_few_bytes(self) -> int:
        """The largest budget per device that cannot hold the training state."""
        return -(-self._state_bytes // self.cluster.device_count) - 1

    def state_exceeds_memory(self) -> bool:
        """Whether the training state alone is larger than the memory of all devices, so that no plan fits."""
        return usable_bytes(self.cluster, self.request.memory_bytes, self.request.headroom) < self._state_bytes

    @property
    def _small(self) -> bool:
        return len(self.program.segments) <= FEW

    @cached_property
    def _state_bytes(self) -> int:
        return training_state_bytes(self.program, self.request.setting)

    def prepare(self, strict: bool) -> None:
        """Makes the candidates that a refusal needs, without a search. strict: as for `keep_all`."""
        try:
            self._make_candidates()
        except PlanError as error:
            if strict:
                raise
            self.refused = error
        self.jointly = self.first

    def search(self, best: Plan | None, found: SearchResult) -> tuple[Plan | None, float]:
        """(the fastest plan that fits, `best` if none is faster; a lower bound on the step of all plans)."""
        budget = self.budget
        limit_s = (best.predicted.step_s if best else inf) * (1 + self.simpler_within)
        if self.method not in (*ANYWHERE, "flat"):
            plan = sweep_budgets(self.first, budget, self._task.refined, None)
            return plan or min_memory_plan(self._task, self.first), min(found.floors.values())
        kept, bound_s = found, found.bound_s
        for _ in range(RETRIES):
            plan = self._assemble(*found.best) if found.best else None
            over = plan.predicted.peak_bytes - budget if plan else 0
            if plan is None or over <= 0:
                best = plan or best
                break
            found = self._keep_all(budget - over, limit_s, self._quick)
        if found.best is None or found.tight:
            if self._small or (found.best and not self.recompute):  # of a small program most bytes are counted too high
                cutoff_s = min(limit_s, best.predicted.step_s) if best else limit_s
                plan, free = self._kept_by_clock(budget, cutoff_s)
                if plan:
                    best = plan
                    mesh = "x".join(map(str, plan.mesh.sizes))
                    self.log.incumbent(mesh_node(mesh, plan.microbatches), plan.predicted.step_s)
                if plan and free:
                    return plan, free.bound_s
            best, joint_s = self._search_jointly(best, found)
            bound_s = min(kept.bound_without(found), joint_s)
            if self._quick and (best is None or best.predicted.step_s > found.limit_s):
                self._quick = False
                more = self._keep_all(budget, best.predicted.step_s if best else inf)
                if more.best or more.slower != found.slower:
                    return self.search(best, more)
            best = best or min_memory_plan(self._task, self.first)
        if self.recompute and self.request.effort.enumerated and not STOP.requested:
            best, proven_s = prove(self.candidates, self._task, best)
            bound_s = max(bound_s, proven_s)
        return best, bound_s

    def _kept_by_clock(
        self, budget_bytes: int, limit_s: float = inf, charge: Charge = uncharged
    ) -> tuple[Plan | None, SearchResult | None]:
        """A plan that fits by the clock's count of bytes, which is mostly below that of the search; and the search
        without a limit, if that is what found it."""
        room = ANY_BYTES
        for _ in range(RETRIES):
            found = self._keep_all(room, limit_s, log=SearchRecorder(), charge=charge)
            if found.best is None:
                break
            plan = self._assemble(*found.best)
            over = plan.predicted.peak_bytes - budget_bytes
            if over <= 0:
                return plan, found if room == ANY_BYTES else None
            room = found.best[0].peak_bytes - over
        return None, None

    def _feasible_by_clock(self, work: WorkBudget, budget_bytes: int) -> MemoryNeeded | None:
        """Everything kept, by the clock's count of bytes."""
        plan, _ = self._kept_by_clock(budget_bytes, charge=work.spend_options)
        return needed_by(plan) if plan else None

    @property
    def _task(self) -> StageTask:
        request = self.request
        limits = (self.method, self.simpler_within, request.effort, request.gap)
        return StageTask(self.program, self.budget, self._draft, *limits, self.log)

    def _make_candidates(self) -> None:
        """The meshes that the pins allow."""
        request = self.request
        meshes = allowed_meshes(self.cluster, self.pins, self.request.max_axes)
        # Few shardings of each op are enough where the user has pinned the plan down.
        self.candidates = candidates_on(self.program, meshes, self.pins, request.setting, few=not request.fit)

    def _keep_all(
        self,
        budget_bytes: int,
        limit_s: float = inf,
        quick: bool = False,
        log: SearchRecorder | None = None,
        charge: Charge = uncharged,
    ) -> SearchResult:
        """Everything kept, on all meshes that the pins allow."""
        self._make_candidates()
        gap, same = self.request.gap, self.simpler_within
        log = log or self.log
        return search(self.candidates, budget_bytes, log, limit_s, same=same, quick=quick, gap=gap, charge=charge)

    def _search_jointly(self, best: Plan | None, found: SearchResult) -> tuple[Plan | None, float]:
        """Sharding and recomputation chosen jointly where memory binds, on the most promising meshes of three axes."""
        incumbent_s, effort = best.predicted.step_s if best else inf, self.request.effort
        candidates = [one.below(found.slower.get(place)) for place, one in enumerate(self.candidates)]
        first = [candidates[place] for place in sorted(found.tight) if not candidates[place].later]
        later = sorted((found.floors[place], place) for place in found.tight if candidates[place].later)
        kept: dict[str, Any] = {"drop": lambda: None}  # they are few, and asked many times
        chosen = [replace(candidates[place], **kept) for floor, place in later[: effort.refined] if floor < incumbent_s]
        self.jointly = first + chosen
        best, bound_s = joint_search(self.jointly, self._task, best, self.elsewhere)
        return best, min([bound_s, *(floor for floor, _ in later[effort.refined :])])

    def _assemble(self, chain: Chain, shardings: ShardingModel) -> Plan:
        return replace(assemble(self.program, self.cluster, chain, shardings), **self.request.plan_fields)

    def _draft(self, chain: Chain, shardings: ShardingModel) -> Plan:
        return replace(draft(self.program, self.cluster, chain, shardings), **self.request.plan_fields)

    def plan_over_budget(self) -> Plan | None:
        """The fastest plan of the most micro-batches, whether it fits or not."""
        chosen = anyway(self.candidates).best
        return self._assemble(*chosen) if chosen else None

    def refusal(self, pipeline_tests: Sequence[FeasibilityTest]) -> PlanError:
        """Why no plan fits, and the memory that would do: no more for a larger limit."""
        if self.refused is not None:
            return self.refused
        budget = self.budget
        self.log.stopped("the smallest limit in which a plan fits", "no plan fits")
        needed = self._needed(self.too_few_bytes, pipeline_tests)
        if needed.bytes <= budget:
            needed = self._needed(budget, pipeline_tests)
        if self.method == "keep":
            needed = replace(needed, how="everything kept")
        needed = needed.offloading(self.request.setting.offload)
        pinned = any(text.startswith("offload=") for text in self.request.pins)
        may_offload = not pinned and can_offload(self.cluster)
        if self.method not in ANYWHERE:
            return refuse_method(self.method, budget, needed, may_offload)
        tight = partial(tight_candidates, self.program, pins=self.pins, setting=self.request.setting)
        larger = larger_cluster(self.cluster, budget, tight, pinned_devices(self.pins), self._state_bytes)
        return refuse_one_stage(self.cluster, budget, needed, larger, self.request.headroom, may_offload)

    def _needed(self, refused: int, pipeline_tests: Sequence[FeasibilityTest]) -> MemoryNeeded:
        """The smallest budget above `refused` in which some test finds a plan.

        The quick tests find it nearly. A small program that was searched is then asked by all tests, to the byte where
        the work budget allows: of others the slow ones find hardly smaller budgets.
        """
        work = WorkBudget(len(self.program.segments))
        found = minimum_budget(self._quick_tests(self._leanest, work), refused, self._estimate(), False, work)
        if not self._small or self.state_exceeds_memory():
            return found
        options = max(one.shardings(one.microbatches[-1]).options for one in self.first)
        work = WorkBudget(len(self.program.segments), options=options)
        every = [*self._quick_tests(self.first, work, exactly=True), *(charged(one, work) for one in pipeline_tests)]
        return minimum_budget([*every, *self._slow_tests(work)], refused, found, True, work)

    def _estimate(self) -> MemoryNeeded:
        """A budget in which a plan by the method of activation checkpointing should fit."""
        found = [estimate_kept(one) for one in self._leanest] if self.method in ANYWHERE else []
        return min([*found, *(estimate_by_method(one, self._task) for one in self._leanest)])

    def _quick_tests(self, leanest: list[Candidate], work: WorkBudget, exactly: bool = False) -> list[FeasibilityTest]:
        """Parts of `search` as feasibility tests, on the meshes that a refusal asks first. exactly: on all meshes."""
        min_memory = partial(feasible_min_memory, self._task, leanest, work)
        if self.method not in (*ANYWHERE, "flat"):
            return [min_memory]
        candidates = self.candidates if exactly else self.first
        return [min_memory, partial(feasible_kept, candidates, self._assemble, work, exactly=exactly)]

    def _slow_tests(self, work: WorkBudget) -> list[FeasibilityTest]:
        """The other parts of `search`."""
        if self.method not in (*ANYWHERE, "flat"):
            return [partial(feasible_by_budgets, self._task, self.first, work)]
        jointly = [partial(one, self._task, self.jointly, work) for one in (feasible_by_budgets, feasible_jointly)]
        return [partial(self._feasible_by_clock, work), *jointly]

    @cached_property
    def _leanest(self) -> list[Candidate]:
        """The mesh whose chain needs least memory."""
        if len(self.first) == 1:
            return self.first
        return [min(self.first, key=lambda one: least_bytes(one.shardings(one.microbatches[-1])))]

    @property
    def first(self) -> list[Candidate]:
        """Meshes of few axes, where there are any."""
        return [one for one in self.candidates if not one.later] or self.candidates
