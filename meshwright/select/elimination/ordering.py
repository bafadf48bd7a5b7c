"""The order in which nodes are eliminated, decided by table sizes alone.

Finding the best order is hard, and which greedy rule does best differs from problem to problem by factors of ten. One
pass costs little, so several RULES are tried and the order with the fewest table entries, as estimated, is taken;
where one of its tables is too large, `descent` improves it. The estimate of a table: its classes multiplied out, times
the share of allowed combinations of each of its factors.

Where only some nodes vary in their costs from run to run, the others go first as far as that takes no more entries over
two runs (`fixed_first`): their tables are filled once for all runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Generic, Protocol, TypeVar

from meshwright.select.elimination.factor import Factor
from meshwright.select.elimination.views import View, Views

# Entries that take as long to fill as a pass takes to look at a node: with fewer, another order is not worth looking
# for. And nodes above which that takes too long.
ENOUGH = 5_000
MANY_NODES = 300
# Entries from which a table is looked at for a way to do it in two steps, and what part of them these may take.
LARGE = 20_000
HOPELESS = 10**30  # as good as infinite, and still a float
BEYOND = 1_000
WORTH = 0.7


class Seen(Protocol):
    """What `in_two` needs of a factor."""

    @property
    def nodes(self) -> tuple[int, ...]: ...
    @property
    def views(self) -> tuple[View, ...]: ...


S = TypeVar("S", bound=Seen)


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """A factor without its values: what it joins and which share of its entries is allowed. varies: with the costs of
    the nodes that do."""

    nodes: tuple[int, ...]
    views: tuple[View, ...]
    share: float
    size: float
    varies: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """What eliminating a node would take (`entries` of a `full` table), leave and remove. varies: as of a Sketch."""

    axes: dict[int, View]
    full: int
    entries: float
    left: int
    removed: float
    varies: bool


# Smallest first. Each is best on some problem: what is left of a table against what goes, all of it, what is left.
# The first is mostly best, so the others soon take more and stop.
RULES: tuple[Callable[[Measure], float], ...] = (
    lambda m: m.left**1.5 / m.removed,
    lambda m: m.full,
    lambda m: m.left,
)
RULES_OF_MANY = RULES[1:2]


@dataclass(frozen=True, slots=True)
class Ordered:
    """nodes: in the order of their elimination. entries: of all tables, as estimated. varying: of those tables alone
    that vary."""

    entries: float
    nodes: list[int]
    varying: float = 0.0


def best_order(start: Pass, most: float, stop: Callable[[], bool]) -> Ordered | None:
    """By the best of the greedy rules. None when each takes more than `most` entries, or when `stop` came first."""
    best: Ordered | None = None
    for rule in RULES if len(start.alone) <= MANY_NODES else RULES_OF_MANY:
        best = start.copy().run(rule, best.entries if best else most, stop) or best
        if best and best.entries <= ENOUGH * len(start.alone):
            break
    return best


def fixed_first(start: Pass, best: Ordered, stop: Callable[[], bool]) -> Ordered:
    """An order that takes no more entries than `best` over two runs, of which the second fills again what varies:
    greedy over the nodes that do not vary, up to some place, then over all. The last such place is looked for by
    bisection, for as long as filling the tables once would take."""
    ahead, early, rule, most = start.copy(), list[int](), RULES[0], best.entries + best.varying
    while (fixed := ahead.waiting.keys() - start.varying) and len(early) * ENOUGH < best.entries:
        node = min(fixed, key=lambda node: (rule(ahead.waiting[node]), node))
        if ahead.waiting[node].entries > most:
            break
        early.append(node)
        ahead.eliminate(node)
    found, low, high, spent = best, 0, len(early), len(early)
    while low < high and spent * ENOUGH < best.entries:
        place = (low + high + 1) // 2
        order = start.copy().run(rule, most, stop, early[:place])
        spent += len(start.alone)
        low, high = (place, high) if order else (low, place - 1)
        found = order if order and order.entries + order.varying < found.entries + found.varying else found
    return found


def hopeless(width: Sequence[int], pairs: Sequence[tuple[int, int]], kept: Sequence[int], most: float) -> bool:
    """Whether a large problem is so wide that classes will not help: a greedy elimination with an entry per option, up
    to BEYOND times what is allowed. Takes a small part of the time that sketches do.
    """
    if len(width) <= MANY_NODES:
        return False
    near: list[set[int]] = [set() for _ in width]
    for a, b in pairs:
        if width[a] > 1 < width[b]:
            near[a].add(b)
            near[b].add(a)
    size = [width[v] * prod([width[a] for a in near[v]]) for v in range(len(width))]
    heap = [(size[v], v) for v in set(range(len(width))) - set(kept)]
    heapq.heapify(heap)
    total = 0
    while heap and total <= BEYOND * most:
        entries, v = heapq.heappop(heap)
        if entries != size[v]:
            continue  # out of date, or gone
        total, size[v], rest = total + entries, -1, near[v]
        for a in rest:
            near[a] |= rest
            near[a] -= {a, v}
            size[a] = width[a] * prod([width[b] for b in near[a]])
            heapq.heappush(heap, (size[a], a))
    return total > BEYOND * most


def sketches(factors: Sequence[Factor], nodes: int) -> list[dict[Sketch, None]]:
    around: list[dict[Sketch, None]] = [{} for _ in range(nodes)]
    for factor in factors:
        share = len(factor.cells) / prod(factor.sizes[: factor.split])
        sketch = Sketch(factor.nodes, factor.views, share, prod(factor.sizes) * share)
        for node in factor.nodes:
            around[node][sketch] = None
    return around


@dataclass(slots=True)
class Pass:
    """One elimination, of sketches only. waiting: nodes that can be next. later: those that can be once another is
    gone. varying: those whose costs change from run to run."""

    alone: Sequence[View]
    join: Callable[[View, View], View]
    around: list[dict[Sketch, None]]
    waiting: dict[int, Measure] = field(default_factory=dict)
    later: Mapping[int, Sequence[int]] = field(default_factory=dict)
    varying: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        kept: Sequence[int],
        factors: Sequence[Factor],
        alone: Sequence[View],
        views: Views,
        later: Mapping[int, Sequence[int]] | None = None,
        varying: Collection[int] = (),
    ) -> Pass:
        """All nodes but `kept`, each with its view `alone`."""
        around = sketches(factors, len(alone))
        found = cls(alone, views.join, around, later=later or {}, varying=frozenset(varying))
        behind = {node for nodes in found.later.values() for node in nodes}
        found.waiting = {node: found.measure(node) for node in set(range(len(alone))) - set(kept) - behind}
        return found

    def copy(self) -> Pass:
        around = [dict(around) for around in self.around]
        return Pass(self.alone, self.join, around, dict(self.waiting), self.later, self.varying)

    def run(
        self, rule: Callable[[Measure], float], most: float, stop: Callable[[], bool], early: Sequence[int] = ()
    ) -> Ordered | None:
        """Greedily, after the nodes `early`; None once there are more than `most` entries, or no time is left."""
        total = varying = 0.0
        order = list(early)
        for node in early:
            total += self.waiting[node].entries
            self.eliminate(node)
        heap = [(rule(measure), node) for node, measure in self.waiting.items()]
        heapq.heapify(heap)
        while heap:
            key, node = heapq.heappop(heap)
            measure = self.waiting.get(node)
            if measure is None or rule(measure) != key:
                continue  # gone, or out of date
            total += measure.entries
            varying += measure.entries * measure.varies
            if total > most or (len(order) % 64 == 63 and stop()):
                return None
            order.append(node)
            for other in self.eliminate(node):
                heapq.heappush(heap, (rule(self.waiting[other]), other))
        return Ordered(total, order, varying)

    def follow(self, order: Sequence[int], most: float = float("inf")) -> list[Measure]:
        """What every step of an order takes, until that is `most` entries in all. Keeps no account of what waits."""
        found: list[Measure] = []
        for node in order:
            found.append(self.measure(node))
            most -= found[-1].entries
            if most <= 0:
                break
            self._replace(node, found[-1])
        return found

    def eliminate(self, node: int) -> list[int]:
        """The nodes whose measures this changes, and those that can be next now."""
        near = self._replace(node, self.waiting.pop(node))
        changed = [*(other for other in near if other in self.waiting), *self.later.get(node, ())]
        self.waiting.update((other, self.measure(other)) for other in changed)
        return changed

    def _replace(self, node: int, measure: Measure) -> tuple[int, ...]:
        near = tuple(measure.axes)[1:]
        share = min(1.0, measure.entries / measure.left)
        left = Sketch(near, tuple(measure.axes.values())[1:], share, measure.left * share, measure.varies)
        for other in near:
            around = self.around[other]
            for sketch in self.around[node]:
                around.pop(sketch, None)
            around[left] = None
        return near

    def measure(self, node: int) -> Measure:
        axes, share, removed, varies = {node: self.alone[node]}, 1.0, 1.0, node in self.varying
        for sketch in self.around[node]:
            share *= sketch.share
            removed += sketch.size
            varies |= sketch.varies
            for other, view in zip(sketch.nodes, sketch.views, strict=True):
                seen = axes.get(other)
                axes[other] = view if seen is None else self.join(seen, view)
        full = min(entries_of(axes), HOPELESS)
        halves = in_two(node, axes, tuple(self.around[node]), self.join)
        entries = halves.entries if halves else full
        return Measure(axes, full, max(min(entries, full) * share, 1.0), full // axes[node].size, removed, varies)


@dataclass(frozen=True, slots=True)
class Halves(Generic[S]):
    """First the other tables, down to the classes `view` of the node, which are all that the tables `coarse` see."""

    view: View
    coarse: tuple[S, ...]
    entries: int


def in_two(
    node: int, axes: dict[int, View], around: Sequence[S], join: Callable[[View, View], View]
) -> Halves[S] | None:
    """The cheapest way to eliminate `node` in two steps, if that takes much less than one."""
    whole = entries_of(axes)
    if not LARGE < whole < HOPELESS:
        return None
    best: Halves[S] | None = None
    seen = [one.views[one.nodes.index(node)] for one in around]
    for view in dict.fromkeys(seen):
        if view.size == axes[node].size:
            continue
        coarse = tuple(one for one, own in zip(around, seen, strict=True) if join(view, own) is view)
        fine = tuple(one for one in around if one not in coarse)
        first = prod([axes[other].size for other in {other for one in fine for other in one.nodes}])
        entries = first + whole // axes[node].size * view.size
        if entries < WORTH * whole and (best is None or entries < best.entries):
            best = Halves(view, coarse, entries)
    return best


def entries_of(axes: dict[int, View]) -> int:
    return prod([view.size for view in axes.values()])
