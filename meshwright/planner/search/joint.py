"""Branch and bound over meshes and micro-batch counts, with sharding and rematerialisation under one budget.

A node is a mesh with a number of micro-batches. Nodes are expanded best bound first (`dual_bound`). A probe refines one
sharding of the node (`mesh_search`); the most promising nodes are then searched with mixtures of shardings. `refine`
chooses exactly what each segment keeps, recomputes and chunks, on its traced pairs and their peaks. Shardings of larger
budgets, rematerialised afterwards (`shard_then_remat`), are incumbents to beat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf

from meshwright.plan import Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.effort import ANY_BYTES, CLOSE
from meshwright.planner.interrupt import STOP
from meshwright.planner.memory.refine import refine
from meshwright.planner.search.dual_bound import SearchNode, search_nodes, tightened
from meshwright.planner.search.keep_all import Candidate, search
from meshwright.planner.search.mesh_search import MeshSearch, is_same
from meshwright.planner.search.shard_then_remat import sweep_budgets
from meshwright.planner.search.task import StageTask
from meshwright.planner.search_log import mesh_node, not_below
from meshwright.planner.sharding.model import ShardingModel

MIXED = "searched with mixtures of shardings"


def joint_search(
    candidates: list[Candidate],
    task: StageTask,
    best: Plan | None,
    elsewhere: Callable[[float], Plan | None] | None = None,
) -> tuple[Plan | None, float]:
    """(the fastest plan, or `best` where rematerialisation does not help; a lower bound on the step of all plans).

    elsewhere: the best pipeline, if the bound of pipelines is below the given seconds.
    """
    state, budget_bytes = _State(task, best, elsewhere), task.budget_bytes
    if STOP.requested and best:
        return best, 0.0
    if best is None:
        state.sweep(candidates)
        state.expand(list(search_nodes(candidates, budget_bytes, state.incumbent_s)))
    else:
        near = max(min(CLOSE, task.effort.near), task.simpler_within, task.gap)
        roomy = search(candidates, ANY_BYTES, limit_s=(1 - near) * state.incumbent_s, first=True, same=min(CLOSE, near))
        if roomy.best is None:  # more memory would not make it faster, nor does recomputing
            bound_s = min(state.incumbent_s, roomy.bound_s)
            task.log.pruned("all meshes, recomputing", "no plan is faster even with unlimited memory", bound_s)
            return best, bound_s
        found = list(search_nodes(candidates, budget_bytes, state.incumbent_s, state.near_s))
        others = state.expand(found, improving=True)  # what it finds leaves fewer nodes to sweep
        state.search_pipelines(others)
        state.sweep_open(candidates, found)
        state.expand(others)
    state.refine_probed()
    state.refine_best()
    return state.best, min(state.bounds, default=state.incumbent_s)


@dataclass(slots=True)
class _State:
    """The incumbent, the bounds of pruned nodes, the nodes probed, and the steps found by sweeps of budgets."""

    task: StageTask
    best: Plan | None
    elsewhere: Callable[[float], Plan | None] | None
    bounds: list[float] = field(default_factory=list)
    probed: list[tuple[float, SearchNode, MeshSearch]] = field(default_factory=list)
    sweep_steps: list[tuple[float, SearchNode]] = field(default_factory=list)

    @property
    def incumbent_s(self) -> float:
        return self.best.predicted.step_s if self.best else inf

    @property
    def near_s(self) -> float:
        """Nodes with a bound above this many seconds are pruned."""
        return (1 - max(self.task.effort.near, self.task.gap)) * self.incumbent_s

    def cutoff_s(self, axes: int) -> float:
        """The seconds that a plan on a mesh of so many axes has to beat."""
        more = self.best is not None and len(self.best.stages) == 1 and axes > axes_of(self.best)
        return self.incumbent_s * (1 - self.task.simpler_within) if more else self.incumbent_s

    def sweep(self, candidates: list[Candidate]) -> None:
        sweep_budgets(candidates, self.task.budget_bytes, self._refined, self.best, exactly=False)

    def sweep_open(self, candidates: list[Candidate], found: list[SearchNode]) -> None:
        """Sweeps budgets on the nodes that may still improve on the incumbent.

        Nodes with the lowest bounds are refined first, and of each node the sharding of the smallest budget, which
        recomputes least. Their steps prune other nodes.
        """
        chains: list[tuple[Chain, ShardingModel]] = []
        kept = _only(candidates, self.promising(found))
        sweep_budgets(kept, self.task.budget_bytes, lambda *one: chains.append(one), self.best, exactly=False)
        for node in sorted(self.promising(found)):
            probed = [one.traced for _, other, one in self.probed if other.is_at(node.shardings())]
            for chain, shardings in reversed(chains):
                known = any(is_same(chain, one.chain) for each in probed for one in each)
                if node.is_at(shardings) and node in self.promising(found) and not known:
                    plan = self._refined(chain, shardings)
                    self.sweep_steps += [(plan.predicted.step_s, node)] if plan else []

    def _refined(self, chain: Chain, shardings: ShardingModel) -> Plan | None:
        plan = self.task.refined(chain, shardings)
        self._better(plan)
        return plan

    def expand(self, found: list[SearchNode], improving: bool = False) -> list[SearchNode]:
        """Expands nodes, best bound first.

        A node is probed; while nothing fits, it is searched in full where the probe does not fit.
        improving: stop once a probe is no better than the incumbent.
        Returns the nodes that were not expanded."""
        found = [replace(one, handicap=self.task.simpler_within * (one.candidate.axes - 1)) for one in found]
        heapify(found)
        while found and not (STOP.requested and self.best):
            if improving and self.probed and self.probed[-1][0] > self.incumbent_s:
                break
            node = heappop(found)
            if self._is_left(node):
                self.bounds.append(node.bound.seconds)
                continue
            if not node.weighed:  # the others stay where they are: a bound is only raised where it stands first
                heappush(found, tightened(node, self.task.budget_bytes, self.incumbent_s))
                continue
            self.bounds.append(node.bound.seconds)
            mesh_search = self.task.mesh_search(node.shardings(), self.cutoff_s(node.candidate.axes))
            mesh_search.most_traced = self.task.effort.shardings
            found_s = mesh_search.probe(node.bound.price, self.task.effort.slower * self.incumbent_s)
            self.probed.append((found_s, node, mesh_search))
            made, how = mesh_search.best, "probed with one sharding"
            if self.best is None and made is None:
                made, how = mesh_search.fastest(node.bound.price) or mesh_search.otherwise(), MIXED
                found_s = made.predicted.step_s if made else inf
            self._take(node, made)
            self._log_expanded(node, how, made, found_s)
        return found

    def search_pipelines(self, left: list[SearchNode]) -> None:
        """Goes on with pipelines where no probe beats the pipeline found: a better one prunes more nodes."""
        if self.elsewhere is None or self.best is None or len(self.best.stages) == 1 or not left:
            return
        plan = self.elsewhere(min(node.bound.seconds for node in left))
        if plan is not None and plan.predicted.step_s < self.incumbent_s:
            self.best = plan

    def promising(self, found: list[SearchNode]) -> list[SearchNode]:
        """Nodes that are not pruned by the incumbent, nor by a mesh of fewer axes with as low a bound."""
        return [one for one in found if one.bound.seconds < self.near_s and not self._has_simpler(one, found)]

    def _is_left(self, node: SearchNode) -> bool:
        """Whether a node is not to be expanded: by its bound, for the effort, or for a simpler mesh. It is logged."""
        name, bound_s, most = self._name(node), node.bound.seconds, self.task.effort.probed
        if bound_s >= self.near_s:
            self.task.log.pruned(name, not_below(self.near_s, self.incumbent_s), bound_s)
            return True
        if len(self.probed) >= most:
            self.task.log.stopped(name, f"the effort allows {most} probes", bound_s)
            return True
        near_s = self.task.effort.slower * bound_s
        # A bound in which memory plays no part, such as the host's launches, may be as low where memory is worth more.
        telling = [one for step_s, one, _ in self.probed if step_s < (inf if one.bound.price else near_s)]
        if self._has_simpler(node, telling):
            self.task.log.stopped(name, "a mesh of fewer axes has as low a bound", bound_s)
            return True
        return False

    def _has_simpler(self, node: SearchNode, others: list[SearchNode]) -> bool:
        """Whether a mesh of fewer axes, with the same micro-batch count, has as low a bound."""
        reach_s = node.bound.seconds * (1 + self.task.simpler_within)
        return self.task.simpler_within > 0 and any(
            other.microbatches == node.microbatches
            and other.candidate.axes < node.candidate.axes
            and other.bound.seconds <= reach_s
            for other in others
        )

    def refine_probed(self) -> None:
        """Searches the most promising probed nodes in full; where none fits, more micro-batches come first."""
        reached = [(min(step_s, self._sweep_step_s(node)), node, one) for step_s, node, one in self.probed]
        order = sorted(reached, key=lambda one: (self._expected_s(*one[:2]), -one[1].microbatches))
        for step_s, node, mesh_search in order[: self.task.effort.refined]:
            promising = self.best is None or self._expected_s(step_s, node) < self.incumbent_s
            promising &= not (STOP.requested and self.best)
            if promising and node.bound.seconds < self.near_s:
                mesh_search.incumbent_s = self.cutoff_s(node.candidate.axes)
                made = mesh_search.fastest(node.bound.price) or mesh_search.otherwise()
                self._take(node, made)
                self._log_expanded(node, MIXED, made, step_s)

    def _expected_s(self, step_s: float, node: SearchNode) -> float:
        """Mixtures of shardings are taken to end half way between a node's first plan and its bound. Where nothing
        fitted there, the incumbent stands for that plan."""
        return ((self.incumbent_s if step_s == inf else step_s) + node.bound.seconds) / 2

    def _sweep_step_s(self, node: SearchNode) -> float:
        """The fastest step that a sweep of budgets has found on a node."""
        known = node.shardings()
        return min((step_s for step_s, other in self.sweep_steps if other.is_at(known)), default=inf)

    def refine_best(self) -> None:
        """Refines the incumbent once more, with backward in more chunks."""
        best = self.best
        if best is not None and not STOP.requested and len(best.stages) == 1 and best.recomputes and not best.order:
            self._better(refine(best, self.task.program, self.task.budget_bytes, method=self.task.method))

    def _name(self, node: SearchNode) -> str:
        kept = "everything kept" if self.task.method == "keep" else "recomputing"
        return f"{mesh_node(node.candidate.name, node.microbatches)}, {kept}"

    def _log_expanded(self, node: SearchNode, how: str, made: Plan | None, step_s: float) -> None:
        """Of what is no plan of the node the step is a rough count: it is not shown."""
        found = "" if made else ": none is faster" if step_s < inf else ": none that was tried fits"
        self.task.log.expanded(
            self._name(node), how + found, node.bound.seconds, made.predicted.step_s if made else None
        )

    def _take(self, node: SearchNode, plan: Plan | None) -> None:
        if plan is not None and plan.predicted.step_s < self.incumbent_s:
            self.best = plan
            self.task.log.incumbent(self._name(node), self.incumbent_s)

    def _better(self, plan: Plan | None) -> None:
        """Takes a plan that no node of the heap led to."""
        if plan is not None and plan.predicted.step_s < self.incumbent_s:
            self.best = plan
            name, how = "x".join(map(str, plan.mesh.sizes)), ", recomputing" if plan.recomputes else ""
            self.task.log.incumbent(f"{mesh_node(name, plan.microbatches)}{how}", self.incumbent_s)


def axes_of(plan: Plan) -> int:
    """Mesh axes of more than one device, of a plan of one stage."""
    return sum(size > 1 for size in plan.mesh.sizes)


def _only(candidates: list[Candidate], found: list[SearchNode]) -> list[Candidate]:
    """The candidates, each with the micro-batch counts of its nodes alone."""
    numbers: dict[int, set[int]] = {}
    for node in found:
        numbers.setdefault(id(node.candidate), set()).add(node.microbatches)
    return [
        replace(one, microbatches=tuple(number for number in one.microbatches if number in numbers[id(one)]))
        for one in candidates
        if id(one) in numbers
    ]
