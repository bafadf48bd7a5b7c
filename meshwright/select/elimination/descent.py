"""A better order of elimination, by local search.

The largest table of an order is what makes it wide. One of the other nodes of that table is eliminated before it, or it
after one of them; the rest follow as they did, or greedily. The best of these orders is taken, as long as it has fewer
entries. All of it takes about as long as filling the largest table that can be held.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.select.elimination.ordering import ENOUGH, RULES, Ordered, Pass


def improved(start: Pass, best: Ordered, largest: float, stop: Callable[[], bool]) -> Ordered:
    """start: before the first step, every node of the order waiting. largest: entries of one table."""
    tables, spent = start.copy().follow(best.nodes), 0
    tried: set[int] = set()
    while spent * ENOUGH < min(largest, best.entries) and len(tried) < len(best.nodes) and not stop():
        left = (place for place, node in enumerate(best.nodes) if node not in tried)
        place = max(left, key=lambda place: tables[place].entries)
        before, rest = start.copy(), best.nodes[place:]
        for node in best.nodes[:place]:
            before.eliminate(node)
        done = sum(table.entries for table in tables[:place])
        found = Ordered(best.entries - done, rest)
        for other in tables[place].axes:
            if other in rest[1:]:
                ways = _ways(before, rest, other, found.entries, stop)
                spent += len(ways) * len(rest)
                found = min([found, *(way for way in ways if way)], key=lambda way: way.entries)
        tried.add(rest[0])
        if found.nodes is not rest:
            best = Ordered(done + found.entries, best.nodes[:place] + found.nodes)
            tables = start.copy().follow(best.nodes)
            tried.clear()
    return best


def _ways(before: Pass, rest: list[int], other: int, most: float, stop: Callable[[], bool]) -> list[Ordered | None]:
    """With the other node before the first of the rest, and the first after it."""
    first, at = rest[0], rest.index(other)
    sooner, later = [other, *rest[:at], *rest[at + 1 :]], [*rest[1 : at + 1], first, *rest[at + 1 :]]
    found: list[Ordered | None] = [_followed(before, order, most) for order in (sooner, later)]
    for rule in RULES:
        here = before.copy()
        entries = here.waiting[other].entries
        here.eliminate(other)
        way = here.run(rule, most - entries, stop)
        found.append(way and Ordered(entries + way.entries, [other, *way.nodes]))
    return found


def _followed(before: Pass, order: list[int], most: float) -> Ordered | None:
    entries = sum(table.entries for table in before.copy().follow(order, most))
    return Ordered(entries, order) if entries < most else None
