"""The fastest chain that fits, over all meshes and all numbers of micro-batches, and a bound over all of them.

More micro-batches never make the work faster: each op and each conversion takes at least as long in pieces. So the
chain of one micro-batch without a memory limit bounds every number of them on a mesh, and once a number fits without
paying for memory, larger ones are not looked at. Meshes of more than two axes come last: most cannot beat what was
found by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from meshwright.errors import PlanError
from meshwright.solve.intra.chain import bound_at, floor_s, solve_chain
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.mix import Chain

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mesh: what makes its Frontier for a number of micro-batches, and the numbers to look at, ascending.

    weights: of what runs beside compute, that are looked at; a Frontier has the first unless asked for another, and it
    is mostly the best bound. drop: forgets the Frontier made last. later: looked at when the others have been.
    """

    name: str
    microbatches: tuple[int, ...]
    frontier: Callable[..., Frontier]
    drop: Callable[[], None]
    weights: tuple[float, ...] = (0.0,)
    later: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """best: the fastest, None where none is faster than was asked for. bound_s: on all of them. floors: what each
    candidate, by its place, is not faster than."""

    best: tuple[Chain, Frontier] | None
    bound_s: float
    floors: dict[int, float]


def search(
    candidates: list[Candidate], budget_bytes: int, progress: Progress | None = None, limit_s: float = float("inf")
) -> Found:
    """Faster than `limit_s`, if any is.

    Meshes in the order of what they could reach; those that cannot beat what was found are not looked at further.
    """
    floors: dict[int, float] = {}
    state = _State(budget_bytes, limit_s, progress, floors)
    refused: list[PlanError] = []
    for later in (False, True):
        found = []
        for place, candidate in enumerate(candidates):
            if candidate.later is later:
                try:
                    floors[place] = state.floor(candidate)
                    found.append((floors[place], place))
                except PlanError as error:
                    refused.append(error)
        for floor, place in sorted(found):
            if floor >= state.known_s:
                break
            state.look_at(candidates[place])
    if not floors:
        raise refused[0]
    return Found(state.best, min([*state.bounds, state.known_s]), floors)


@dataclass(slots=True)
class _State:
    """The best so far, what was proven on the way, and the price per byte at which the best was found."""

    budget_bytes: int
    limit_s: float
    progress: Progress | None
    floors: dict[int, float]
    best: tuple[Chain, Frontier] | None = None
    bounds: list[float] = field(default_factory=list)
    price: float = 0.0

    @property
    def known_s(self) -> float:
        return self.best[0].seconds if self.best else self.limit_s

    def floor(self, candidate: Candidate) -> float:
        """What no number of micro-batches is faster than."""
        floor = floor_s(candidate.frontier(candidate.microbatches[0]))
        if candidate.later and floor >= self.known_s:
            candidate.drop()
        return floor

    def look_at(self, candidate: Candidate) -> None:
        """Every number of micro-batches that could be faster."""
        for frontier in _frontiers(candidate):
            if frontier.least_static() > self.budget_bytes:
                break  # nor is there less of it in more micro-batches
            if frontier.least_held() + frontier.least_transient() > self.budget_bytes:
                continue
            if self.price:
                bound_s = bound_at(frontier, self.price, self.budget_bytes)
                if bound_s >= self.known_s:
                    self.bounds.append(bound_s)
                    continue
            free, proven_s = True, 0.0
            for weight in candidate.weights:
                chain, bound_s = solve_chain(frontier.weighed(weight), self.budget_bytes, self.known_s)
                self._take(candidate.name, chain, frontier)
                free &= chain is not None and not chain.price
                proven_s = max(proven_s, bound_s)
                if proven_s >= self.known_s:
                    break
            self.bounds.append(proven_s)
            if free:
                break
        if candidate.later:
            candidate.drop()

    def _take(self, name: str, chain: Chain | None, frontier: Frontier) -> None:
        if chain is not None and chain.seconds < self.known_s:
            self.best, self.price = (chain, frontier), chain.price
            self._say(f"{name} x {frontier.setting.microbatches}", chain.seconds)

    def _say(self, name: str, seconds: float) -> None:
        """The best so far, and its gap to what the meshes looked at so far could reach."""
        if self.progress:
            gap = max(0.0, 1 - min(self.floors.values()) / seconds)
            self.progress(f"{name}: {seconds:.4g} s, gap at most {gap:.1%}")


def _frontiers(candidate: Candidate) -> Iterator[Frontier]:
    for number in candidate.microbatches:
        try:
            yield candidate.frontier(number)
        except PlanError:
            continue  # this cut of the batch does not go with the pins
