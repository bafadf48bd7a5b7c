"""Plans of one stage: the whole chain of segments on all devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from typing import Any

from meshwright.cluster import Mesh
from meshwright.errors import PlanError
from meshwright.pins.meshes import allowed_meshes
from meshwright.pins.methods import ANYWHERE
from meshwright.pins.parts import pinned_devices
from meshwright.plan import Plan
from meshwright.planner.chain.lagrangian import least_bytes
from meshwright.planner.chain.mix import Chain
from meshwright.planner.effort import EXACT, RETRIES
from meshwright.planner.infeasible.by_method import least_by_method, no_room
from meshwright.planner.infeasible.feasibility import (
    feasible_by_budgets,
    feasible_jointly,
    feasible_kept,
    feasible_min_memory,
    min_memory_plan,
)
from meshwright.planner.infeasible.min_memory import (
    MemoryNeeded,
    Part,
    WorkBudget,
    counted_pipeline,
    minimum_budget,
)
from meshwright.planner.infeasible.report import does_not_fit, least_of, state_bytes, usable_bytes
from meshwright.planner.interrupt import STOP
from meshwright.planner.memory.by_method import method_search
from meshwright.planner.memory.offload import can_offload
from meshwright.planner.realize import assemble, draft
from meshwright.planner.request import PlanRequest
from meshwright.planner.search.joint import joint_search
from meshwright.planner.search.keep_all import Candidate, SearchResult, anyway, search
from meshwright.planner.search.proof import prove
from meshwright.planner.search_log import SearchRecorder
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.space.candidates import candidates_on, tight_candidates

ROUNDING = 1e-12
"""A gap below this is that of adding the same seconds in another order."""


class OneStageSearch:
    """Plans that run the whole chain on all devices."""

    def __init__(
        self, request: PlanRequest, pins: tuple[str, ...], method: str, given: dict[str, Any], log: SearchRecorder
    ) -> None:
        """pins: those of a mesh. method: of activation checkpointing. given: fields of the Plan that a request sets."""
        self.program, self.cluster, self.setting = request.program, request.cluster, request.setting
        self.pins, self.method, self.given, self.log = pins, method, given, log
        self.max_axes, self.effort, self.gap = request.max_axes, request.effort, request.gap
        self.budget, self.headroom, self.memory_bytes = request.budget_bytes, request.headroom, request.memory_bytes
        self.few = not request.fit  # what is pinned down has little left to weigh
        self.recompute = request.recompute and method != "keep"
        self.simpler_within = max(request.simpler_within, ROUNDING)
        self._quick = self.recompute
        self.meshes: list[Mesh] = []
        self.candidates: list[Candidate] = []
        self.jointly: list[Candidate] = []
        self.refused: PlanError | None = None
        self.elsewhere: Callable[[float], Plan | None] | None = None

    def keep_all(self, best: Plan | None, must: bool) -> SearchResult | None:
        """Everything kept; None where no mesh allows the pins. must: which is an error at once."""
        limit_s = best.predicted.step_s if best else inf
        try:
            return self.found(self.budget, limit_s * (1 + self.simpler_within), self._quick)
        except PlanError as error:
            if must:
                raise
            self.refused = error
            return None

    @property
    def too_few_bytes(self) -> int:
        """The most bytes on each device that do not hold the parameters with their gradients and states."""
        return -(-self._state_bytes // self.cluster.device_count) - 1

    def holds_nothing(self) -> bool:
        """Whether the devices are too small for the training state alone."""
        return usable_bytes(self.cluster, self.memory_bytes, self.headroom) < self._state_bytes

    @cached_property
    def _exact(self) -> bool:
        """Whether a refusal names the fewest bytes of all parts of the search: of a small program that was searched."""
        return len(self.program.segments) <= EXACT and not self.holds_nothing()

    @cached_property
    def _state_bytes(self) -> int:
        return state_bytes(self.program, self.setting)

    def prepare(self, must: bool) -> None:
        """What a refusal asks, without a search. must: as for `keep_all`."""
        try:
            self.meshes = allowed_meshes(self.cluster, self.pins, self.max_axes)
            self.candidates = candidates_on(self.program, self.meshes, self.pins, self.setting, few=self.few)
        except PlanError as error:
            if must:
                raise
            self.refused = error
        self.jointly = self.first

    def search(self, best: Plan | None, found: SearchResult) -> tuple[Plan | None, float]:
        """(the fastest that fits, `best` if none is faster; a bound on all of them). found: everything kept."""
        budget = self.budget
        limit_s = (best.predicted.step_s if best else inf) * (1 + self.simpler_within)
        if self.method not in (*ANYWHERE, "flat"):
            plan = method_search(self.first, self.program, budget, self.drafted, self.method)
            return plan, min(found.floors.values())
        bound_s = found.bound_s
        for _ in range(RETRIES):
            plan = self.written(*found.best) if found.best else None
            over = plan.predicted.peak_bytes - budget if plan else 0
            if plan is None or over <= 0:
                best = plan or best
                break
            found = self.found(budget - over, limit_s, self._quick)
        if self.recompute and (found.best is None or found.tight):
            best, joint_s = self._jointly(budget, best, found)
            bound_s = min(bound_s, joint_s)
            if self._quick and (best is None or best.predicted.step_s > found.limit_s):
                self._quick = False
                more = self.found(budget, best.predicted.step_s if best else inf)
                if more.best or more.slower != found.slower:
                    return self.search(best, more)
            best = best or min_memory_plan(self.first, budget, self.program, self.drafted, self.method)
        if self.recompute and self.effort.enumerated and not STOP.asked:
            best, bound_s = self._proven(best, bound_s)
        return best, bound_s

    def _proven(self, best: Plan | None, bound_s: float) -> tuple[Plan | None, float]:
        """Of a tiny program, with every sharding looked at."""
        best, proven_s = prove(
            self.candidates,
            self.program,
            self.budget,
            self.drafted,
            best,
            self.log,
            self.effort.enumerated,
            self.simpler_within,
            self.method == "flat",
        )
        return best, max(bound_s, proven_s)

    def found(self, budget_bytes: int, limit_s: float = inf, quick: bool = False) -> SearchResult:
        """Everything kept, on all meshes that the pins allow."""
        self.meshes = allowed_meshes(self.cluster, self.pins, self.max_axes)
        self.candidates = candidates_on(self.program, self.meshes, self.pins, self.setting, few=self.few)
        return search(
            self.candidates, budget_bytes, self.log, limit_s, same=self.simpler_within, quick=quick, gap=self.gap
        )

    def _jointly(self, budget: int, best: Plan | None, found: SearchResult) -> tuple[Plan | None, float]:
        """Sharding and recomputation where memory binds, on meshes of more than two axes for the most promising few."""
        incumbent_s = best.predicted.step_s if best else float("inf")
        candidates = [one.below(found.slower.get(place)) for place, one in enumerate(self.candidates)]
        first = [candidates[place] for place in sorted(found.tight) if not candidates[place].later]
        later = sorted((found.floors[place], place) for place in found.tight if candidates[place].later)
        kept: dict[str, Any] = {"drop": lambda: None}  # they are few, and asked again and again
        chosen = [
            replace(candidates[place], **kept) for floor, place in later[: self.effort.refined] if floor < incumbent_s
        ]
        self.jointly = first + chosen
        best, bound_s = joint_search(
            self.jointly,
            self.program,
            budget,
            self.drafted,
            best,
            self.log,
            flat=self.method == "flat",
            simpler_within=self.simpler_within,
            effort=self.effort,
            gap=self.gap,
            elsewhere=self.elsewhere,
        )
        return best, min([bound_s, *(floor for floor, _ in later[self.effort.refined :])])

    def written(self, chain: Chain, shardings: ShardingModel) -> Plan:
        return replace(assemble(self.program, self.cluster, chain, shardings), **self.given)

    def drafted(self, chain: Chain, shardings: ShardingModel) -> Plan:
        return replace(draft(self.program, self.cluster, chain, shardings), **self.given)

    def anyway(self) -> tuple[Chain, ShardingModel] | None:
        """The fastest of the most micro-batches, whether it fits or not."""
        return anyway(self.candidates).best

    def refusal(self, others: Sequence[Part]) -> PlanError:
        """Why there is no plan. others: that look for one in several stages. Of larger programs, and where nothing was
        searched, the quick parts are asked alone: what takes long names hardly less."""
        if self.refused is not None:
            return self.refused
        budget = self.budget
        work = WorkBudget(len(self.program.segments), self._exact)
        quick, slow = self._parts(work)
        staged = [counted_pipeline(one, work) for one in others]
        parts = (*quick, *staged, *slow) if self._exact else quick
        refused = max(budget, self.too_few_bytes)
        least = minimum_budget(parts, refused, self._known(budget), self._exact, work)
        if self.method not in ANYWHERE:
            return no_room(self.method, budget, least)
        tight = partial(tight_candidates, self.program, pins=self.pins, setting=self.setting)
        unit = pinned_devices(self.pins)
        may_host = not any(text.startswith("offload=") for text in self.given["pins"]) and can_offload(self.cluster)
        return does_not_fit(self.cluster, budget, least, tight, unit, self.headroom, self._state_bytes, may_host)

    def _known(self, budget: int) -> MemoryNeeded:
        """Bytes in which a plan should fit that saves memory as it is to be saved."""
        found = [least_of(one) for one in self.leanest] if self.method in ANYWHERE else []
        if self.recompute:
            given = self.program, self.drafted, self.method, budget
            found += [least_by_method(one, *given) for one in self.leanest]
        return min(found)

    def _parts(self, work: WorkBudget) -> tuple[list[Part], list[Part]]:
        """(what `search` does, but only until something fits; what of it takes long)."""
        given: dict[str, Any] = {"program": self.program, "assemble": self.drafted, "work": work}
        least_memory = partial(feasible_min_memory, self.leanest, method=self.method, **given)
        if self.method not in (*ANYWHERE, "flat"):
            return [least_memory], [partial(feasible_by_budgets, self.first, method=self.method, **given)]
        kept = partial(feasible_kept, self.candidates if self._exact else self.first, program=self.program)
        if not self.recompute:
            return [kept], []
        jointly = partial(feasible_jointly, self.jointly, flat=self.method == "flat", **given)
        by_budgets = partial(feasible_by_budgets, self.jointly, method=self.method, **given)
        return [least_memory, kept], [jointly, by_budgets]

    @cached_property
    def leanest(self) -> list[Candidate]:
        """Of these, those that a refusal asks first: all for an exact one, else the one whose chain holds least."""
        if self._exact or len(self.first) == 1:
            return self.first
        return [min(self.first, key=lambda one: least_bytes(one.shardings(one.microbatches[-1])))]

    @property
    def first(self) -> list[Candidate]:
        """Meshes of few axes, where there are any."""
        return [one for one in self.candidates if not one.later] or self.candidates
