"""Where a flat program may be cut, and which ops belong to no segment of their own.

A natural cut is a position at which exactly one value derived from a parameter is alive, and that value is a
float with a gradient and with dims: what is computed from a scalar belongs to the loss. Ops that depend on no
parameter are set aside (*common*); they are placed afterwards, in the one segment that reads them or, if several do, in
the prologue.

Where values live long (an encoder's output, a position bias, a U-Net's skips) no such position may exist for
hundreds of ops. Such a stretch is cut as if the values that live longest were not there: they are *carried* past
the segments that do not read them. How long is long: the limit whose segments cost planning least. A distinct
segment costs its ops, more if it is large, and what is alive besides one value where it ends; of equals, the one whose
largest segment is smallest, then the one that carries least.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from meshwright.capture.cutting.fold import merge, structure
from meshwright.capture.flat import Flat
from meshwright.capture.program import Op

SHORTEST_CARRY = 8
"""A value alive for fewer ops than this is part of one piece of work."""
CARRIED = 2
"""What a value carried over the end of a distinct segment costs, in ops: its layouts multiply what is to be tried."""
LARGE = 3
"""Segments of more than so many times the usual number of ops cost more than their ops: they are planned whole."""
MOST_LIMITS = 256
"""Of more lengths than these that values live for, every second, third and so on is tried as the limit, so that cutting
takes time in proportion to the ops."""

Lives = dict[str, tuple[int, int]]


def split_common(flat: Flat) -> tuple[list[Op], list[Op]]:
    """(ops derived from a parameter or a buffer that changes, and those that change it; common ops), each in program
    order."""
    updated = {buffer for buffer, _ in flat.updates}
    news = {value for _, value in flat.updates}
    derived = {entry.name for entry in flat.parameters} | updated
    chain, common = [], []
    for op in flat.ops:
        if any(name in derived for name in op.uses()) or any(value.name in news for value in op.results):
            derived.update(value.name for value in op.results)
            chain.append(op)
        else:
            common.append(op)
    return chain, common


def cut(chain: Sequence[Op], loss: str, max_ops: int) -> list[tuple[Op, ...]]:
    """The chain in pieces: cut wherever one value is alive, and where that leaves long stretches, carrying some.

    Nothing is cut behind the op that makes the loss: what follows it (a buffer's new value) belongs to its segment.
    """
    lives = spans(chain)
    behind = 1 + next(i for i, op in enumerate(chain) if any(value.name == loss for value in op.results))
    edges = [0, *cuts_without(chain, lives, 0, behind, None), len(chain)]
    found = []
    for start, end in pairwise(edges):
        inner = _carrying(chain, lives, (start, end), behind, max_ops) if end - start > 2 * max_ops else []
        found += [tuple(chain[a:b]) for a, b in pairwise([start, *inner, end])]
    return found


def spans(chain: Sequence[Op]) -> Lives:
    """For each value the op that makes it and the last that reads it; values nobody reads are left out."""
    made = {value.name: index for index, op in enumerate(chain) for value in op.results}
    last = {name: index for index, op in enumerate(chain) for name in op.uses() if name in made}
    return {name: (made[name], index) for name, index in last.items()}


def cuts_without(chain: Sequence[Op], lives: Lives, start: int, end: int, limit: int | None) -> list[int]:
    """Positions inside (start, end) at which one value is alive; or, those that live for `limit` ops or more aside,
    at most one."""
    delta = [0] * (len(chain) + 1)
    blocked = [0] * (len(chain) + 1)
    for op in chain:
        for value in op.results:
            if value.name not in lives:
                continue
            made, last = lives[value.name]
            if limit is not None and last - made >= limit:
                continue
            delta[made + 1] += 1
            delta[last + 1] -= 1
            if not value.grad or (limit is None and not value.type.shape):
                blocked[made + 1] += 1
                blocked[last + 1] -= 1
    allowed = (1,) if limit is None else (0, 1)
    found, alive, without = [], 0, 0
    for position in range(end):
        alive += delta[position]
        without += blocked[position]
        if position > start and alive in allowed and not without:
            found.append(position)
    return found


def _carrying(chain: Sequence[Op], lives: Lives, stretch: tuple[int, int], behind: int, max_ops: int) -> list[int]:
    """Where to cut a stretch; nowhere from position `behind` on."""
    start, end = stretch
    lengths = {last - made for made, last in lives.values() if last > start and made < end}
    alive = _alive(lives, len(chain))
    best: list[int] = []
    least = _score(chain, alive, start, [], end, max_ops)
    limits = sorted((length for length in lengths if length >= SHORTEST_CARRY), reverse=True)
    for limit in limits[:: -(-len(limits) // MOST_LIMITS) or 1]:
        cuts = cuts_without(chain, lives, start, min(end, behind), limit)
        if not cuts or cuts == best:
            continue
        score = _score(chain, alive, start, cuts, end, max_ops)
        if score < least:
            best, least = cuts, score
    return best


def _alive(lives: Lives, length: int) -> list[int]:
    """How many values are alive before each op, and after the last."""
    delta = [0] * (length + 2)
    for made, last in lives.values():
        delta[made + 1] += 1
        delta[last + 1] -= 1
    return list(accumulate(delta))


def _score(
    chain: Sequence[Op], alive: list[int], start: int, cuts: list[int], end: int, max_ops: int
) -> tuple[int, int]:
    """(ops and carried values of distinct segments, ops in the largest)."""
    edges = [start, *cuts, end]
    distinct: dict[object, int] = {}
    largest = 0
    for first, last in merge([tuple(chain[a:b]) for a, b in pairwise(edges)], max_ops):
        a, b = edges[first], edges[last]
        key, large = structure(chain[a:b]), max(b - a - LARGE * max_ops, 0)
        cost = b - a + large + CARRIED * max(alive[b] - 1, 0)
        distinct[key] = max(distinct.get(key, 0), cost)
        largest = max(largest, b - a)
    return sum(distinct.values()), largest
