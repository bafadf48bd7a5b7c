"""Branch and bound over meshes and micro-batch counts, with everything kept.

A node is a mesh with a micro-batch count. Meshes are expanded best bound first, each in ascending counts. On a GPU more
micro-batches never make the work faster: each op and each conversion takes at least as long in pieces. So the chain of
one micro-batch without a memory limit bounds every count on its mesh. Once a count fits without a price for memory,
larger counts are pruned. On a CPU all counts are expanded. Meshes of more than two axes come last, since the incumbent
prunes most of them.

Of steps within a part of each other the simplest is taken: fewest mesh axes, then fewest micro-batches, then fewest
distinct layers. So the cutoff of a simpler node is above the incumbent by that part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import gcd, inf

from meshwright.capture.program import Program
from meshwright.capture.sizes import BatchSize
from meshwright.errors import PlanError
from meshwright.plan.units import show_seconds
from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.exact import Charge, uncharged
from meshwright.planner.chain.lagrangian import bound_at, solve_chain, step_bound_s
from meshwright.planner.effort import ANY_BYTES, CLOSE, EFFORTS
from meshwright.planner.interrupt import STOP
from meshwright.planner.search_log import SearchRecorder, mesh_node, not_below, over_budget
from meshwright.planner.sharding.model import ShardingModel


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mesh with its micro-batch counts, ascending: each of them is a node.

    shardings: makes the ShardingModel of a count.
    drop: frees the ShardingModel made last.
    weights: overlap weights to try. A ShardingModel has the first, which mostly gives the best bound.
    later: expanded after the others.
    axes: number of axes of more than one device.
    rising: more micro-batches are no faster. On a CPU they may be, since small values stay in its caches.
    """

    name: str
    microbatches: tuple[int, ...]
    shardings: Callable[[int], ShardingModel]
    drop: Callable[[], None]
    weights: tuple[float, ...] = (0.0,)
    later: bool = False
    axes: int = 1
    rising: bool = True

    def below(self, microbatches: int | None) -> Candidate:
        """The same with smaller numbers alone."""
        if microbatches is None:
            return self
        return replace(self, microbatches=tuple(n for n in self.microbatches if n < microbatches))


@dataclass(frozen=True, slots=True)
class FoundChain:
    """A chain found on one candidate. rank: the simplest has the least."""

    chain: Chain
    shardings: ShardingModel
    place: int
    rank: tuple[int, int, int, float]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The fastest chains, and what the search proved.

    equals: the fastest chain and those as fast; empty where none beats the limit.
    pruned_s: lower bound on the nodes that were pruned.
    expanded: lower bound of each other node, by the place of its candidate and its micro-batch count.
    floors: lower bound of each candidate, by its place.
    slower: micro-batch count from which on a candidate cannot beat the incumbent.
    tight: candidates that more memory may make faster.
    limit_s: slower chains were left out.
    """

    equals: tuple[FoundChain, ...]
    pruned_s: float
    expanded: dict[tuple[int, int], float]
    floors: dict[int, float]
    slower: dict[int, int]
    tight: frozenset[int]
    limit_s: float = inf

    @property
    def bound_s(self) -> float:
        """Lower bound on the step of all candidates."""
        return min([self.pruned_s, *self.expanded.values()])

    def bound_without(self, other: SearchResult) -> float:
        """The same, leaving out the nodes of candidates that were tight in another search: a joint search has bounds of
        its own for these, which cover keeping everything."""
        left = (
            bound_s
            for (place, number), bound_s in self.expanded.items()
            if place not in other.tight or number >= other.slower.get(place, inf)
        )
        return min([self.pruned_s, *left])

    @property
    def simplest(self) -> FoundChain | None:
        return min(self.equals, key=lambda one: one.rank, default=None)

    @property
    def best(self) -> tuple[Chain, ShardingModel] | None:
        """The simplest of the equals."""
        found = self.simplest
        return (found.chain, found.shardings) if found else None


def search(
    candidates: list[Candidate],
    budget_bytes: int,
    log: SearchRecorder | None = None,
    limit_s: float = inf,
    first: bool = False,
    exactly: bool = True,
    same: float = CLOSE,
    quick: bool = False,
    gap: float = 0.0,
    hard: bool = True,
    charge: Charge = uncharged,
) -> SearchResult:
    """The fastest chain that fits, if it beats `limit_s`.

    first: the first chain that fits is enough.
    exactly, hard, charge: as for `solve_chain`.
    same: steps closer than this part are equal.
    quick: rematerialisation follows, so chains that pay more for memory than it takes are of no use.
    gap: a node is pruned if its bound is within this part of the incumbent.
    """
    hard = hard and not quick
    state = _State(
        candidates, budget_bytes, limit_s, log or SearchRecorder(), exactly, same, quick, hard, gap, first, charge
    )
    refused: list[PlanError] = []
    for later in (False, True):
        if later and first and state.equals:
            break
        found = []
        for place, candidate in enumerate(candidates):
            if candidate.later is later and candidate.microbatches and not (STOP.requested and state.equals):
                try:
                    found.append((state.bound_mesh(place), place))
                except PlanError as error:
                    state.log.pruned(mesh_node(candidate.name), f"refused: {error.given}")
                    refused.append(error)
        if quick and found:
            state.limit_s = min(state.limit_s, 2 * min(found)[0])
        for floor, place in sorted(found):
            state.expand_mesh(place, floor)
    if not state.floors and refused:
        raise refused[0]
    pruned_s = min([*state.bounds, state.incumbent_s])
    return SearchResult(
        tuple(state.equals), pruned_s, state.expanded, state.floors, state.slower, frozenset(state.tight), state.limit_s
    )


def anyway(candidates: list[Candidate]) -> SearchResult:
    """The fastest of the most micro-batches, whether it fits or not."""
    return search([replace(one, microbatches=one.microbatches[-1:]) for one in candidates], ANY_BYTES)


@dataclass(frozen=True, slots=True)
class MinBytes:
    """Lower bound on the bytes of a chain, found in the first micro-batch count of a mesh for all of them.

    samples: of a micro-batch.
    scales: the size of every value is in proportion to the samples, so that it falls no faster than they do.
    """

    microbatches: int
    samples: int
    static_bytes: int
    other_bytes: float
    scales: bool

    @classmethod
    def of(cls, shardings: ShardingModel) -> MinBytes:
        other = shardings.least_kept() + shardings.least_transient()
        number, samples = shardings.setting.microbatches, shardings.program.batch
        return cls(number, samples, shardings.least_static(), other, in_proportion(shardings.program))

    def bytes_at(self, microbatches: int) -> float:
        """Of counts that are no multiple, and of samples that do not divide, pieces may be rounded down to less."""
        fewer, rest = divmod(microbatches, self.microbatches)
        even = self.scales and not rest and self.samples % fewer == 0
        return self.static_bytes + (self.other_bytes / fewer * (1 - CLOSE) if even else 0.0)


def _bound_s(candidate: Candidate, number: int) -> float:
    """Infinite where the pins do not allow this cut of the batch."""
    try:
        return step_bound_s(candidate.shardings(number))
    except PlanError:
        return inf


def any_evener(candidate: Candidate, shardings: ShardingModel) -> bool:
    """Whether a larger micro-batch count leaves samples that more of the mesh's devices share evenly, so that it may be
    faster than this one."""
    size, number, world = shardings.program.batch, shardings.setting.microbatches, shardings.mesh.world_size
    later = (other for other in candidate.microbatches if other > number)
    return any(gcd(size * number // other, world) > gcd(size, world) for other in later)


def in_proportion(program: Program) -> bool:
    """Whether the size of every value is in proportion to the samples, or does not depend on them."""
    for graph in program.graphs:
        for value in graph.values().values():
            sizes = [size for size in value.type.shape if isinstance(size, BatchSize)]
            if len(sizes) > 1 or any(len(size.coefficients) > 2 or size.coefficients[0] < 0 for size in sizes):
                return False
    return True


@dataclass(slots=True)
class _State:
    """The incumbent with its equals, the bounds of pruned nodes, and what was learnt of each mesh, by its place.

    equals: the incumbent and the chains as fast.
    bounds: of nodes that were pruned.
    expanded: bounds of the others, by the place of the candidate and the micro-batch count.
    price: per byte, at which the incumbent was found.
    least: bytes of each mesh.
    later: how many meshes of more than two axes are tight. The first are the most promising and are asked again.
    """

    candidates: list[Candidate]
    budget_bytes: int
    limit_s: float
    log: SearchRecorder
    exactly: bool
    same: float
    quick: bool
    hard: bool
    gap: float
    first: bool
    charge: Charge
    equals: list[FoundChain] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    expanded: dict[tuple[int, int], float] = field(default_factory=dict)
    price: float = 0.0
    floors: dict[int, float] = field(default_factory=dict)
    least: dict[int, MinBytes] = field(default_factory=dict)
    slower: dict[int, int] = field(default_factory=dict)
    tight: set[int] = field(default_factory=set)
    later: int = 0

    @property
    def incumbent_s(self) -> float:
        return min((one.chain.seconds for one in self.equals), default=self.limit_s)

    def cutoff_s(self, candidate: Candidate, number: int) -> float:
        """The seconds that a node has to beat: a simpler one may be as fast as the incumbent, and a mesh of more than
        two axes has to be faster by more than that."""
        if not self.equals:
            return self.incumbent_s
        simplest = min(one.rank for one in self.equals)
        if candidate.later and candidate.axes > simplest[0]:
            return self.incumbent_s * (1 - max(self.same, self.gap))
        return self.incumbent_s * (1 + self.same if (candidate.axes, number) < simplest[:2] else 1 - self.gap)

    def bound_mesh(self, place: int) -> float:
        """Lower bound on the step in every micro-batch count."""
        candidate = self.candidates[place]
        shardings = candidate.shardings(candidate.microbatches[0])
        floor = step_bound_s(shardings)
        for number in () if candidate.rising else candidate.microbatches[1:]:
            floor = min(floor, _bound_s(candidate, number))
        if floor >= self.cutoff_s(candidate, candidate.microbatches[0]):
            self.slower[place] = candidate.microbatches[0]
            candidate.drop()
        else:
            self.least[place] = MinBytes.of(shardings)
        self.floors[place] = floor
        return floor

    def expand_mesh(self, place: int, floor: float) -> None:
        """Expands the nodes of a mesh in ascending micro-batch counts, unless its bound prunes it.

        In a quick search a mesh of more than two axes is left to rematerialisation, whose bound covers it, where
        nothing simpler fits with everything kept or something simpler may be as fast.
        """
        candidate, mesh = self.candidates[place], mesh_node(self.candidates[place].name)
        cutoff_s = self.cutoff_s(candidate, candidate.microbatches[0])
        if self.quick and candidate.later and (not self.equals or self._has_simpler(floor, candidate)):
            self.tight.add(place)
            self.log.stopped(mesh, "a mesh of fewer axes comes first: left to recomputation", floor)
            return
        if self._is_enough:
            self.log.stopped(mesh, "the best so far was asked for")
            return
        if floor >= cutoff_s:
            self.bounds.append(floor)
            self.log.pruned(mesh, self._not_below(cutoff_s), floor)
            return
        if place not in self.least:  # pruned at first, and among the simpler ones now
            self.least[place] = MinBytes.of(candidate.shardings(candidate.microbatches[0]))
        for number in candidate.microbatches:
            if self._is_enough or self._expand(place, candidate, number):
                break
        self.later += candidate.later and place in self.tight
        if candidate.later and (place not in self.tight or self.later > EFFORTS["default"].refined):
            candidate.drop()

    @property
    def _is_enough(self) -> bool:
        return bool((self.first or STOP.requested) and self.equals)

    def _has_simpler(self, floor: float, candidate: Candidate) -> bool:
        """Whether a mesh of fewer axes that more memory may make faster could be as fast."""
        others = (self.candidates[at].axes for at in self.tight if self.floors[at] <= floor * (1 + self.same))
        return self.same >= CLOSE and any(axes < candidate.axes for axes in others)

    def _expand(self, place: int, candidate: Candidate, number: int) -> bool:
        """Expands a node, or prunes it by its bounds on bytes and seconds; whether larger counts are pruned too."""
        node = mesh_node(candidate.name, number)
        least = self.least[place].bytes_at(number)
        if least > self.budget_bytes:
            return self._prune_bytes(place, node, least)
        try:
            shardings = candidate.shardings(number)
        except PlanError:
            self.log.pruned(node, "this cut of the batch does not go with the pins")
            return False
        if shardings.least_static() > self.budget_bytes:  # nor is there less of it in more micro-batches
            self._prune_bytes(place, node, shardings.least_static(), "the training state")
            return True
        least = shardings.least_held() + shardings.least_transient()
        if least > self.budget_bytes:
            return self._prune_bytes(place, node, least)
        floor, cutoff_s = step_bound_s(shardings), self.cutoff_s(candidate, number)
        if floor >= cutoff_s:
            self.bounds.append(floor)
            self.log.pruned(node, self._not_below(cutoff_s), floor)
            if any_evener(candidate, shardings) or not candidate.rising:
                return False
            self.slower[place] = number
            return True
        bound_s = bound_at(shardings, self.price, self.budget_bytes) if self.price else 0.0
        if bound_s >= cutoff_s:
            self.tight.add(place)
            self.expanded[place, number] = bound_s
            self.log.pruned(node, f"under the memory limit {self._not_below(cutoff_s)}", bound_s)
            return False
        proven_s, free = self._solve(place, candidate, shardings, floor)
        self.expanded[place, number] = proven_s
        why = "memory does not bind" if free else "memory binds"
        self.log.expanded(node, f"everything kept, {why}", proven_s)
        if not free:
            self.tight.add(place)
        return free and candidate.rising

    def _not_below(self, cutoff_s: float) -> str:
        """Why a node is pruned by its bound: in seconds while no node has led to an incumbent."""
        if self.equals:
            return not_below(cutoff_s, self.incumbent_s)
        return f"its bound is not below {show_seconds(cutoff_s)}"

    def _prune_bytes(self, place: int, node: str, least: float, of: str = "everything kept") -> bool:
        self.log.pruned(node, over_budget(least, self.budget_bytes, of))
        self.tight.add(place)
        return False

    def _solve(self, place: int, candidate: Candidate, shardings: ShardingModel, bound_s: float) -> tuple[float, bool]:
        """Solves a node at its overlap weights: (its bound, whether memory does not bind)."""
        free, before_s = True, inf
        for weight in candidate.weights:
            cutoff_s = self.cutoff_s(candidate, shardings.setting.microbatches)
            here = shardings.weighed(weight)
            how = self.exactly, self.hard, self.first, self.charge
            chain, found_s = solve_chain(here, self.budget_bytes, cutoff_s, *how)
            self._take(place, candidate, chain, shardings)
            free &= chain is not None and not chain.price
            bound_s = max(bound_s, found_s)
            if bound_s >= self.cutoff_s(candidate, shardings.setting.microbatches):
                break
            if (chain is None and not self.hard) or self._is_enough:
                break
            if chain is not None and not self.hard:
                hidden = chain.seconds <= chain.weighed_s(0.0) * (1 + self.same)
                if chain.seconds > before_s or (hidden and chain.seconds == before_s):
                    break  # to move less takes more compute from here on
                before_s = chain.seconds
        return bound_s, free

    def _take(self, place: int, candidate: Candidate, chain: Chain | None, shardings: ShardingModel) -> None:
        """Takes a chain as the incumbent, or as its equal if it is simpler."""
        if chain is None:
            return
        number, before_s = shardings.setting.microbatches, self.incumbent_s
        rank = (candidate.axes, number, len({id(point) for point in chain.points}), chain.seconds)
        simpler = self.equals and rank < min(one.rank for one in self.equals)
        if chain.seconds >= before_s * (1 + self.same if simpler else 1):
            return
        self.equals.append(FoundChain(chain, shardings, place, rank))
        self.equals = [one for one in self.equals if one.chain.seconds <= self.incumbent_s * (1 + self.same)]
        if chain.seconds < before_s:
            self.price = chain.price
            gap = max(0.0, 1 - min(self.floors.values()) / chain.seconds)
            self.log.incumbent(mesh_node(candidate.name, number), chain.seconds, gap)
