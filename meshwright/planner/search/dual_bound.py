"""Lower bounds on the step of one (mesh, micro-batch count) over all shardings and rematerialisations.

A Lagrangian relaxation of the memory limit. Held bytes are charged at a price l. A saved tensor may be recomputed
instead (`planner.space.saved` has what that takes at least). With r the overlap weight,

    bound(l, r) = min over chains of (seconds at r + charges at l) - l * budget          (`_bound_s`)

is at most the step of every plan of the node, by weak duality. It is concave in l, so its maximum is bracketed
(`_highest`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, sqrt

from meshwright.errors import PlanError
from meshwright.planner.chain.lagrangian import memory_free_bound_s, step_bound_s
from meshwright.planner.chain.shortest_path import least_cost
from meshwright.planner.effort import CLOSE, RETRIES
from meshwright.planner.search.keep_all import Candidate, any_evener
from meshwright.planner.search.mesh_search import weighed
from meshwright.planner.sharding.model import ShardingModel


@dataclass(frozen=True, slots=True)
class DualBound:
    """A lower bound in seconds, and the price per byte that proves it; 0 where memory plays no part."""

    seconds: float
    price: float


@dataclass(frozen=True, slots=True)
class SearchNode:
    """A mesh with a micro-batch count, and its lower bound.

    weighed: the bound counts communication that overlaps compute.
    handicap: part by which the bound is raised in the order of nodes, so that simpler meshes come first.
    """

    bound: DualBound
    candidate: Candidate
    microbatches: int
    weighed: bool = False
    handicap: float = 0.0

    def shardings(self) -> ShardingModel:
        return self.candidate.shardings(self.microbatches).recomputing()

    def is_at(self, shardings: ShardingModel) -> bool:
        """Whether these shardings are of the same mesh, pins and micro-batch count."""
        own = self.candidate.shardings(self.microbatches)
        return own.mesh == shardings.mesh and own.pins == shardings.pins and own.setting == shardings.setting

    def __lt__(self, other: SearchNode) -> bool:
        return self.bound.seconds * (1 + self.handicap) < other.bound.seconds * (1 + other.handicap)


def search_nodes(
    candidates: list[Candidate], budget_bytes: int, incumbent_s: float, cutoff_s: float = inf
) -> Iterable[SearchNode]:
    """The nodes that may beat the incumbent, with bounds that count compute alone.

    The bound of a mesh of more axes is raised no further than that of a simpler mesh.
    cutoff_s: a node with a bound above it will not be expanded. Where that holds without a memory limit, one
        node stands for all larger micro-batch counts of its mesh."""
    price = 0.0
    simpler: dict[int, DualBound] = {}
    for candidate in sorted(candidates, key=lambda one: one.axes):
        for number in candidate.microbatches:
            try:
                shardings = candidate.shardings(number).recomputing()
                if shardings.least_static() > budget_bytes:
                    break  # nor is there less of it in more of them
                if shardings.bounds and step_bound_s(shardings) >= incumbent_s:
                    if _is_last(candidate, shardings, incumbent_s):
                        break  # more micro-batches are no faster
                    continue
                least = DualBound(step_bound_s(shardings) if shardings.bounds else memory_free_bound_s(shardings), 0.0)
                before = simpler.get(number, DualBound(incumbent_s, price))
                enough_s = min(incumbent_s, before.seconds * (1 - CLOSE))
                bound = best_bound([shardings], budget_bytes, enough_s, least, before.price or price)
            except PlanError:
                continue
            price = bound.price or price  # of the next: bytes are worth much the same there
            simpler[number] = min(before, bound, key=lambda one: one.seconds)
            if bound.seconds < incumbent_s:
                yield SearchNode(bound, candidate, number)
            more = [other for other in candidate.microbatches if other > number]
            if more and _is_last(candidate, shardings, cutoff_s):
                yield SearchNode(least, candidate, more[0])
                break


def _is_last(candidate: Candidate, shardings: ShardingModel, cutoff_s: float) -> bool:
    """Whether no micro-batch count from this one on can beat `cutoff_s`."""
    if not candidate.rising or not shardings.bounds or step_bound_s(shardings) < cutoff_s:
        return False
    return not any_evener(candidate, shardings)


def tightened(node: SearchNode, budget_bytes: int, incumbent_s: float) -> SearchNode:
    """The node with communication that overlaps compute in its bound."""
    bound = best_bound(weighed(node.shardings())[1:], budget_bytes, incumbent_s, node.bound)
    return replace(node, bound=bound, weighed=True)


def best_bound(
    models: Iterable[ShardingModel], budget_bytes: int, incumbent_s: float, best: DualBound, start: float = 0.0
) -> DualBound:
    """The highest bound over the overlap weights of these models and all prices.

    incumbent_s: a bound above it is high enough.
    start: the first price to try where `best` has none, in seconds per byte.
    """
    for shardings in models:
        best = _highest(shardings, budget_bytes, incumbent_s, best, best.price or start)
    return best


def _highest(
    shardings: ShardingModel, budget_bytes: int, incumbent_s: float, best: DualBound, start: float
) -> DualBound:
    """The maximum over the price: prices are tried outwards until they enclose it, then inside."""
    price = start or best.seconds / max(1, budget_bytes)
    values: dict[float, float] = {}
    for _ in range(RETRIES):
        if best.seconds >= incumbent_s:
            break
        values[price] = _bound_s(shardings, price, budget_bytes)
        if values[price] > best.seconds:
            best = DualBound(values[price], price)
        following = _next_price(values, best.seconds)
        if following is None:
            break
        price = following
    return best


def _next_price(values: dict[float, float], best_s: float) -> float | None:
    """Where a concave function with these values may be higher than `best_s` by more than CLOSE; None: nowhere."""
    prices = sorted(values)
    top = max(range(len(prices)), key=lambda place: values[prices[place]])
    if top == len(prices) - 1:  # ever further, where the last one was not far enough
        return 2 * prices[top] * (prices[top] / prices[top - 1] if top else 1.0)
    sides = [_highest_between(values, prices, left) for left in (top - 1, top) if left >= 0 and len(prices) > 2]
    if top == 0:  # left of the lowest price it lies below the line through the two lowest
        further = 2 * (prices[1] / prices[0] if len(prices) > 2 else 1.0)
        sides.append((values[prices[0]] - _slope(values, *prices[:2]) * prices[0], prices[0] / further))
    most_s, price = max(sides)
    return price if most_s > best_s * (1 + CLOSE) else None


def _highest_between(values: dict[float, float], prices: list[float], left: int) -> tuple[float, float]:
    """(how high a concave function with these values may be between a price and the next, where to ask): it lies below
    the lines through the two points before and through the two behind."""
    low, high = prices[left], prices[left + 1]
    before = _slope(values, prices[left - 1], low) if left > 0 else None
    behind = _slope(values, high, prices[left + 2]) if left + 2 < len(prices) else None
    if before is None or behind is None or before <= behind:
        most_s = (
            values[low] + before * (high - low) if before is not None else values[high] - (behind or 0.0) * (high - low)
        )
    else:
        at = (values[high] - values[low] + before * low - behind * high) / (before - behind)
        most_s = values[low] + before * (at - low)
    return most_s, sqrt(low * high)


def _slope(values: dict[float, float], low: float, high: float) -> float:
    return (values[high] - values[low]) / (high - low)


def _bound_s(shardings: ShardingModel, price: float, budget_bytes: int) -> float:
    asked = price * shardings.scale
    return (least_cost(shardings, asked) - asked * budget_bytes) / shardings.scale
