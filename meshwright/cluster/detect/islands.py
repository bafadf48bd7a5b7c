"""Find how members (ranks of a host, hosts of a network) nest, from the bandwidth between some pairs of them.

In a tree of switches the rate between two members is that of the narrowest link on their way, an ultrametric:
rate(x, y) >= min(rate(p, x), rate(p, y)). So one pivot p, measured against all others, sorts them into classes by
rate; members of a class are at least that close to each other, and are sorted by a pivot of their own. When three
pivots in a row see nothing but one rate, the class is taken to be uniform: k levels of n members cost O(k n)
probes where islands are large, never more than the n^2/2 pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Probe = Callable[[int, int], float]
ProbeAll = Callable[[int, list[int]], list[tuple[float, int]]]
_ENOUGH_PIVOTS = 3


@dataclass(frozen=True, slots=True)
class Island:
    """Members that reach each other at `rate` bytes per second; children may be nearer to their own."""

    rate: float
    children: tuple[Island | int, ...]

    def members(self) -> Iterator[int]:
        for child in self.children:
            if isinstance(child, int):
                yield child
            else:
                yield from child.members()

    @property
    def depth(self) -> int:
        return 1 + max((child.depth for child in self.children if isinstance(child, Island)), default=0)


def find_islands(
    members: Sequence[int], probe: Probe, tolerance: float = 1.4, again: Probe | None = None
) -> Island | int:
    """The tree of islands of `members`; rates within a factor `tolerance` count as equal.

    `again` measures a pair anew. A pair that looks far is asked twice and the better answer kept, since a busy
    machine can make a near pair look far but not a far one near.
    """
    return _find(list(members), _asked_twice(probe, again, tolerance), tolerance, None, 0)


def _asked_twice(probe: Probe, again: Probe | None, tolerance: float) -> ProbeAll:
    def ask(pivot: int, others: list[int]) -> list[tuple[float, int]]:
        rated = [(probe(pivot, other), other) for other in others]
        if again is None:
            return rated
        near = max(rate for rate, _ in rated)
        far = {other for rate, other in rated if rate * tolerance < near}
        return [(max(rate, again(pivot, other)) if other in far else rate, other) for rate, other in rated]

    return ask


def _find(members: list[int], probe: ProbeAll, tolerance: float, expected: float | None, uniform: int) -> Island | int:
    pivot, others = members[0], members[1:]
    if not others:
        return pivot
    classes = _classes(probe(pivot, others), tolerance)
    alike = len(classes) == 1 and (expected is None or classes[0][0] < expected * tolerance)
    uniform = uniform + 1 if alike else 0
    if uniform >= _ENOUGH_PIVOTS:
        return Island(classes[0][0], tuple(members))
    tree: Island | int = pivot
    for rate, near in classes:
        tree = _join(tree, _find(near, probe, tolerance, rate, uniform), rate, tolerance)
    return tree


def _classes(rated: list[tuple[float, int]], tolerance: float) -> list[tuple[float, list[int]]]:
    """Members by rate, fastest class first; a class ends where the next rate is a factor `tolerance` lower."""
    classes: list[tuple[float, list[int]]] = []
    last = 0.0
    for rate, member in sorted(rated, reverse=True):
        if not classes or rate * tolerance < last:
            classes.append((rate, []))
        classes[-1][1].append(member)
        last = rate
    # The typical rate stands for the class; order by number so that trees do not depend on noise.
    return [(sorted(r for r, m in rated if m in near)[len(near) // 2], sorted(near)) for _, near in classes]


def _join(tree: Island | int, other: Island | int, rate: float, tolerance: float) -> Island:
    """Both under one island of `rate`; one that is an island of the same rate gives its children instead."""
    children: list[Island | int] = []
    for part in (tree, other):
        same = isinstance(part, Island) and rate / tolerance < part.rate < rate * tolerance
        children += part.children if isinstance(part, Island) and same else (part,)
    return Island(rate, tuple(sorted(children, key=_first)))


def _first(child: Island | int) -> int:
    return child if isinstance(child, int) else min(child.members())


def pull_in_slow_members(tree: Island) -> tuple[Island, dict[int, float]]:
    """Siblings of a single higher island have a slow link of their own, not a level of their own.

    A host next to an island of hosts, or a rack next to an island of racks. Returns the tree with them inside that
    island, and the rate of each by its first rank.
    """
    slow: dict[int, float] = {}
    children: list[Island | int] = []
    for child in tree.children:
        if isinstance(child, Island):
            child, inner = pull_in_slow_members(child)
            slow |= inner
        children.append(child)
    tree = Island(tree.rate, tuple(children))
    while (island := _only_highest(tree)) is not None:
        siblings = [child for child in tree.children if child is not island]
        slow = dict.fromkeys(map(_first, siblings), tree.rate) | slow
        tree = Island(island.rate, tuple(sorted((*island.children, *siblings), key=_first)))
    return tree, slow


def _only_highest(tree: Island) -> Island | None:
    """The island that is higher than all its siblings, if there is one."""
    highest = max(_depth(child) for child in tree.children)
    tallest = [child for child in tree.children if _depth(child) == highest]
    return tallest[0] if len(tallest) == 1 and isinstance(tallest[0], Island) and len(tree.children) > 1 else None


def _depth(child: Island | int) -> int:
    return child.depth if isinstance(child, Island) else 0


def level_out(tree: Island | int, depth: int, rate: float = 0.0) -> Island | int:
    """The tree with every member at the same depth: lone members become islands of one."""
    if depth == 0:
        return tree
    if isinstance(tree, int):
        return Island(rate, (level_out(tree, depth - 1, rate),)) if depth else tree
    if tree.depth < depth:
        return Island(tree.rate, (level_out(tree, depth - 1, tree.rate),))
    return Island(tree.rate, tuple(level_out(child, depth - 1, tree.rate) for child in tree.children))
