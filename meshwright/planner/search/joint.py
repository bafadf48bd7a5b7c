"""Sharding and recomputation under one budget.

Meshes and numbers of micro-batches are looked at in the order of their bounds (`bounds`) until none can win. `refine`
chooses exactly, for a sharding, what each instance keeps, recomputes and chunks, on the traced pairs and their real
peaks; `together` looks at the shardings of one mesh in one number of micro-batches, at one of them as a probe, then at
more and at their mixtures. What is found one after the other (`sweep`) is there too, so as to be beaten.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf

from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.planner.chain.mix import Chain
from meshwright.planner.effort import ANY_BYTES, CLOSE, EFFORTS, Effort
from meshwright.planner.interrupt import STOP
from meshwright.planner.memory.refine import refine
from meshwright.planner.search.dual_bound import Entry, entries, raised
from meshwright.planner.search.keep_all import Candidate, search
from meshwright.planner.search.mesh_search import FEWER, Assemble, Together, is_same
from meshwright.planner.search.shard_then_remat import sweep_budgets
from meshwright.planner.search_log import SearchRecorder, mesh_node, not_below
from meshwright.planner.sharding.model import Frontier


def joint_search(
    candidates: list[Candidate],
    program: Program,
    budget_bytes: int,
    assemble: Assemble,
    best: Plan | None,
    log: SearchRecorder | None = None,
    flat: bool = False,
    simpler_within: float = 0.0,
    effort: Effort = EFFORTS["default"],
    gap: float = 0.0,
) -> tuple[Plan | None, float]:
    """(the fastest plan, `best` where recomputation does not help; a bound on all of them). flat: every segment runs
    forward once, and nothing waits on the host. simpler_within: steps closer than this part are equal, and the plan of
    fewer axes is taken. effort: how much is searched. gap: a node is pruned whose bound is within this part of the
    incumbent."""
    state = _State(program, budget_bytes, assemble, best, log or SearchRecorder(), flat, simpler_within, effort, gap)
    if STOP.asked and best:
        return best, 0.0
    if best is None:
        state.sweep(candidates)
        state.look_at(list(entries(candidates, budget_bytes, state.known_s)))
    else:
        near = max(min(CLOSE, effort.near), simpler_within, gap)
        roomy = search(candidates, ANY_BYTES, limit_s=(1 - near) * state.known_s, first=True, same=min(CLOSE, near))
        if roomy.best is None:  # more memory would not make it faster, nor does recomputing
            bound_s = min(state.known_s, roomy.bound_s)
            state.log.pruned("all meshes, recomputing", "no plan is faster even with unlimited memory", bound_s)
            return best, bound_s
        found = list(entries(candidates, budget_bytes, state.known_s, state.near_s))
        others = state.look_at(found, improving=True)  # what it finds leaves fewer nodes to sweep
        state.sweep_open(candidates, found)
        state.look_at(others)
    state.refine_probed()
    state.refine_best()
    return state.best, min(state.bounds, default=state.known_s)


@dataclass(slots=True)
class _State:
    """The best so far, what was proven on the way, and what was probed."""

    program: Program
    budget_bytes: int
    assemble: Assemble
    best: Plan | None
    log: SearchRecorder
    flat: bool
    simpler_within: float
    effort: Effort
    gap: float = 0.0
    bounds: list[float] = field(default_factory=list)
    probed: list[tuple[float, Entry, Together]] = field(default_factory=list)

    @property
    def known_s(self) -> float:
        return self.best.predicted.step_s if self.best else inf

    @property
    def near_s(self) -> float:
        """What a bound has to be below for its node to be pursued."""
        return (1 - max(self.effort.near, self.gap)) * self.known_s

    def cutoff_s(self, axes: int) -> float:
        """What a plan on a mesh of so many axes has to be faster than."""
        more = self.best is not None and len(self.best.stages) == 1 and axes > axes_of(self.best)
        return self.known_s * (1 - self.simpler_within) if more else self.known_s

    def sweep(self, candidates: list[Candidate]) -> None:
        sweep_budgets(candidates, self.budget_bytes, self._refined, self.best, exactly=False)

    def sweep_open(self, candidates: list[Candidate], found: list[Entry]) -> None:
        """On the nodes that could yet win. Those with the lowest bounds are refined first, and of one node what was
        found for the smallest budget, which has least to recompute: what they reach prunes others."""
        met: list[tuple[Chain, Frontier]] = []
        kept = _only(candidates, self.promising(found))
        sweep_budgets(kept, self.budget_bytes, lambda *one: met.append(one), self.best, exactly=False)
        for node in sorted(self.promising(found)):
            probed = [together.met for _, entry, together in self.probed if entry.is_at(node.frontier())]
            for chain, frontier in reversed(met):
                known = any(is_same(chain, one.chain) for each in probed for one in each)
                if node.is_at(frontier) and node in self.promising(found) and not known:
                    self._refined(chain, frontier)

    def _refined(self, chain: Chain, frontier: Frontier) -> Plan | None:
        plan = refine(self.assemble(chain, frontier), self.program, self.budget_bytes, FEWER, self.flat)
        self._better(plan)
        return plan

    def look_at(self, found: list[Entry], improving: bool = False) -> list[Entry]:
        """Those with the lowest bounds: all of what they have while nothing fits, as a probe then. improving: until a
        probe is no better. Returns the others."""
        found = [replace(one, handicap=self.simpler_within * (one.candidate.axes - 1)) for one in found]
        heapify(found)
        while found and not (STOP.asked and self.best):
            if improving and self.probed and self.probed[-1][0] > self.known_s:
                break
            entry = heappop(found)
            pruned = self._why_pruned(entry)
            if pruned:
                self.bounds.append(entry.bound.seconds)
                self.log.pruned(_node(entry), pruned, entry.bound.seconds)
                continue
            if not entry.weighed:  # the others stay where they are: a bound is only raised where it stands first
                heappush(found, raised(entry, self.budget_bytes, self.known_s))
                continue
            self.bounds.append(entry.bound.seconds)
            offered = (lambda _, ways: ways.curves.options) if self.flat else None
            frontier = entry.frontier()
            cutoff_s = self.cutoff_s(entry.candidate.axes)
            together = Together(frontier, self.program, self.budget_bytes, self.assemble, cutoff_s, offered)
            together.most_met = self.effort.shardings
            known_s = self.known_s
            if self.best is None:
                self._take(entry, together.fastest(entry.bound.price) or together.otherwise())
            else:
                most_s = self.effort.slower * self.known_s
                self.probed.append((together.probe(entry.bound.price, most_s), entry, together))
                self._take(entry, together.best)
            found_s = self.probed[-1][0] if known_s < inf else self.known_s
            self.log.expanded(_node(entry), "probed with one sharding", entry.bound.seconds, found_s)
        return found

    def promising(self, found: list[Entry]) -> list[Entry]:
        """Those whose bound is low enough to be looked at, and lower than that of any mesh of fewer axes."""
        return [one for one in found if one.bound.seconds < self.near_s and not self._has_simpler(one, found)]

    def _why_pruned(self, entry: Entry) -> str:
        """Empty where the node is to be expanded."""
        if len(self.probed) >= self.effort.probed:
            return f"the effort allows {self.effort.probed} probes"
        if entry.bound.seconds >= self.near_s:
            return not_below(self.near_s, self.known_s)
        fitting = [other for step_s, other, _ in self.probed if step_s < inf]
        return "a mesh of fewer axes has as low a bound" if self._has_simpler(entry, fitting) else ""

    def _has_simpler(self, entry: Entry, others: list[Entry]) -> bool:
        """Whether one of the others is a mesh of fewer axes, in as many micro-batches, whose bound is as low."""
        reach_s = entry.bound.seconds * (1 + self.simpler_within)
        return self.simpler_within > 0 and any(
            other.microbatches == entry.microbatches
            and other.candidate.axes < entry.candidate.axes
            and other.bound.seconds <= reach_s
            for other in others
        )

    def refine_probed(self) -> None:
        """The most promising of what was probed; of what did not fit, more micro-batches."""
        order = sorted(self.probed, key=lambda one: (one[0], -one[1].microbatches))
        for step_s, entry, together in order[: self.effort.refined]:
            promising = step_s == inf or step_s <= self.effort.slower * self.known_s
            promising &= not (STOP.asked and self.best)
            if promising and entry.bound.seconds < self.near_s:
                before_s, together.known_s = self.known_s, self.cutoff_s(entry.candidate.axes)
                self._take(entry, together.fastest(entry.bound.price) or together.otherwise())
                self.log.expanded(_node(entry), "searched with mixtures of shardings", entry.bound.seconds, step_s)
                if (1 - self.effort.near) * before_s < self.known_s < inf and self.effort.near:
                    return  # what promised most has kept little of it

    def refine_best(self) -> None:
        """With backwards in more chunks."""
        best = self.best
        if best is not None and not STOP.asked and len(best.stages) == 1 and best.recomputes and not best.order:
            self._better(refine(best, self.program, self.budget_bytes, flat=self.flat))

    def _take(self, entry: Entry, plan: Plan | None) -> None:
        if plan is not None and plan.predicted.step_s < self.known_s:
            self.best = plan
            self.log.incumbent(_node(entry), self.known_s)

    def _better(self, plan: Plan | None) -> None:
        """Of one stage, found by other ways than from an entry."""
        if plan is not None and plan.predicted.step_s < self.known_s:
            self.best = plan
            name, how = "x".join(map(str, plan.mesh.sizes)), ", recomputing" if plan.recomputes else ""
            self.log.incumbent(f"{mesh_node(name, plan.microbatches)}{how}", self.known_s)


def _node(entry: Entry) -> str:
    return f"{mesh_node(entry.candidate.name, entry.microbatches)}, recomputing"


def axes_of(plan: Plan) -> int:
    """Of more than one device, in a plan of one stage."""
    return sum(size > 1 for size in plan.mesh.sizes)


def _only(candidates: list[Candidate], found: list[Entry]) -> list[Candidate]:
    """The candidates with those numbers of micro-batches alone that have an entry."""
    numbers: dict[int, set[int]] = {}
    for entry in found:
        numbers.setdefault(id(entry.candidate), set()).add(entry.microbatches)
    return [
        replace(one, microbatches=tuple(number for number in one.microbatches if number in numbers[id(one)]))
        for one in candidates
        if id(one) in numbers
    ]
