"""Proof by enumeration, for tiny programs: every sharding, in the order of its step with everything kept.

Shardings that the rough peaks of the search overlook are found here. The bound is raised to the fastest step that any
sharding has under any rematerialisation (`planner.memory.enumerate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.enumerate import TooManyError, every_chain
from meshwright.planner.chain.lagrangian import CLOSED
from meshwright.planner.effort import RESOLUTION
from meshwright.planner.memory.enumerate import fastest_fitting
from meshwright.planner.search.keep_all import Candidate
from meshwright.planner.search.task import StageTask
from meshwright.planner.search_log import mesh_node
from meshwright.planner.sharding.model import ShardingModel


def prove(candidates: Sequence[Candidate], task: StageTask, best: Plan | None) -> tuple[Plan | None, float]:
    """(the fastest plan, a lower bound on all plans; zero where there are too many shardings).

    Of RESOLUTION / 2 partial choices that the effort enumerates one sharding is traced, in as many ways to run it.
    A plan has to beat `best` by more than `simpler_within`.
    """
    most = task.effort.enumerated
    bounds, each = [], RESOLUTION // 2
    tries = most // each
    for candidate in candidates:
        for number in candidate.microbatches:
            incumbent_s = best.predicted.step_s if best else float("inf")
            try:
                shardings = candidate.shardings(number).weighed(candidate.weights[0])
                chains = every_chain(shardings, incumbent_s, most) if best else []
            except PlanError:
                continue
            except TooManyError:
                return best, 0.0
            fitted = _Fitted(shardings, task, incumbent_s, each)
            fitted.expand(chains, tries)
            tries -= fitted.tried
            if fitted.best is not None:
                best = fitted.best
                task.log.incumbent(mesh_node(candidate.name, number), fitted.incumbent_s)
            bounds.append(fitted.bound_s)
            why = f"{len(chains)} shardings enumerated, {fitted.tried} of them with what they recompute"
            task.log.expanded(mesh_node(candidate.name, number), why, min(fitted.bound_s, fitted.incumbent_s))
    if best is None:
        return None, 0.0
    return best, min([best.predicted.step_s, *bounds])


@dataclass(slots=True)
class _Fitted:
    """The shardings of one node, under every rematerialisation.

    most: rematerialisations of a sharding that are enumerated.
    best: the incumbent, if it was found here.
    bound_s: lower bound on the plans of these shardings, infinite where none beats the incumbent.
    tried: shardings that were traced.
    """

    shardings: ShardingModel
    task: StageTask
    incumbent_s: float
    most: int
    best: Plan | None = None
    bound_s: float = float("inf")
    tried: int = 0

    def expand(self, chains: list[Chain], most: int) -> None:
        """Traces shardings, the fastest with everything kept first. One that fits so has no faster plan, since
        recomputation only adds to a step.

        most: shardings to trace. The next bounds the others.
        """
        for chain in sorted(chains, key=lambda one: one.seconds):
            if chain.seconds >= self.incumbent_s * (1 - CLOSED):
                return
            if chain.static_bytes > self.task.budget_bytes:
                continue
            if self.tried >= most:
                self.bound_s = min(self.bound_s, chain.seconds)
                return
            self.tried += 1
            plan, bound_s = self._fastest(chain)
            self.bound_s = min(self.bound_s, bound_s)
            step_s = plan.predicted.step_s if plan else float("inf")
            if step_s < self.incumbent_s * (1 - self.task.simpler_within):
                self.best, self.incumbent_s = plan, step_s
                if step_s <= chain.seconds * (1 + CLOSED):
                    return

    def _fastest(self, chain: Chain) -> tuple[Plan | None, float]:
        """(the fastest plan of a sharding, if any fits; a bound on all of them)."""
        task, flat = self.task, self.task.method == "flat"
        plan = task.assemble(chain, self.shardings)
        try:
            return fastest_fitting(plan, task.program, task.budget_bytes, self.incumbent_s, self.most, flat)
        except TooManyError:
            return task.refined(chain, self.shardings), chain.seconds
