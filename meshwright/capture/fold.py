"""Merging natural pieces to the shortest repeating unit: a transformer layer, a residual block.

The pieces' structures form a sequence; the run of repeats that covers most ops is found, its unit merged, and
the rest treated the same way. What repeats nowhere is merged up to the size of the largest unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.capture.program import Op, Ref, map_leaves

Span = tuple[int, int]


def structure(ops: Sequence[Op]) -> tuple[Any, ...]:
    """What two pieces must share to be the same: targets, sizes, literals and wiring, whatever the names."""
    numbers: dict[str, int] = {}

    def number(leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            return ("ref", numbers.setdefault(leaf.name, len(numbers)))
        return (type(leaf).__name__, leaf)

    found = []
    for op in ops:
        args, kwargs = map_leaves(op.args, number), map_leaves(op.kwargs, number)
        results = tuple((numbers.setdefault(v.name, len(numbers)), v.type, v.grad) for v in op.results)
        found.append((op.target, args, kwargs, results))
    return tuple(found)


def merge(pieces: Sequence[Sequence[Op]], largest: int = 24) -> list[Span]:
    """Spans [start, end) of pieces that become one segment each, in order."""
    keys = [structure(piece) for piece in pieces]
    sizes = [len(piece) for piece in pieces]
    spans = _units(keys, sizes, 0, len(pieces))
    unit = max((sum(sizes[a:b]) for a, b, repeated in spans if repeated), default=largest)
    merged: list[tuple[int, int, bool]] = []
    for start, end, repeated in spans:
        if merged and not repeated and not merged[-1][2] and sum(sizes[merged[-1][0] : end]) <= unit:
            merged[-1] = (merged[-1][0], end, False)
        else:
            merged.append((start, end, repeated))
    return [(start, end) for start, end, _ in merged]


def _units(keys: list[Any], sizes: list[int], low: int, high: int) -> list[tuple[int, int, bool]]:
    run = _best_run(keys, sizes, low, high)
    if run is None:
        return [(i, i + 1, False) for i in range(low, high)]
    start, period, repeats = run
    end = start + period * repeats
    inner = [(start + i * period, start + (i + 1) * period, True) for i in range(repeats)]
    return _units(keys, sizes, low, start) + inner + _units(keys, sizes, end, high)


def _best_run(keys: list[Any], sizes: list[int], low: int, high: int) -> tuple[int, int, int] | None:
    """(start, period, repeats) that covers most ops; of equals the shortest period, then the earliest."""
    best: tuple[int, int, int] | None = None
    covered = 0
    for period in range(1, (high - low) // 2 + 1):
        start = low
        while start + 2 * period <= high:
            repeats = 1
            while _same(keys, start, start + repeats * period, period, high):
                repeats += 1
            total = sum(sizes[start : start + repeats * period])
            if repeats > 1 and total > covered:
                best, covered = (start, period, repeats), total
            start += 1 if repeats == 1 else (repeats - 1) * period + 1
    return best


def _same(keys: list[Any], first: int, other: int, period: int, high: int) -> bool:
    return other + period <= high and keys[first : first + period] == keys[other : other + period]
