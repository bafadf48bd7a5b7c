"""Merging natural pieces to the shortest repeating unit: a transformer layer, a residual block.

The pieces' structures form a sequence; the run of repeats that covers most ops is found, its unit merged, and
the rest treated the same way. What repeats nowhere is merged up to the size of the largest unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from meshwright.capture.program import Op, Ref, map_leaves

Span = tuple[int, int]


def structure(ops: Sequence[Op]) -> tuple[Any, ...]:
    """What two pieces must share to be the same: targets, sizes, literals and wiring, whatever the names.

    Floats are left out: a rate or a scale that differs from layer to layer becomes an argument.
    """
    numbers: dict[str, int] = {}

    def number(leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            return ("ref", numbers.setdefault(leaf.name, len(numbers)))
        return "float" if isinstance(leaf, float) else (type(leaf).__name__, leaf)

    found = []
    for op in ops:
        args, kwargs = map_leaves(op.args, number), map_leaves(op.kwargs, number)
        results = tuple((numbers.setdefault(v.name, len(numbers)), v.type, v.grad) for v in op.results)
        found.append((op.target, args, kwargs, results))
    return tuple(found)


def floats(ops: Sequence[Op]) -> tuple[float, ...]:
    """The floats that `structure` leaves out, in order."""

    def walk(tree: Any) -> Iterator[float]:
        if isinstance(tree, tuple):
            for item in tree:
                yield from walk(item)
        elif isinstance(tree, float):
            yield tree

    return tuple(number for op in ops for number in walk((op.args, op.kwargs)))


def merge(pieces: Sequence[Sequence[Op]], largest: int = 24) -> list[Span]:
    """Spans [start, end) of pieces that become one segment each, in order."""
    known: dict[Any, int] = {}
    keys = [known.setdefault(structure(piece), len(known)) for piece in pieces]
    ends = [0, *accumulate(len(piece) for piece in pieces)]
    spans = _units(keys, ends, 0, len(pieces))
    unit = max((ends[b] - ends[a] for a, b, repeated in spans if repeated), default=largest)
    merged: list[tuple[int, int, bool]] = []
    for start, end, repeated in spans:
        if merged and not repeated and not merged[-1][2] and ends[end] - ends[merged[-1][0]] <= unit:
            merged[-1] = (merged[-1][0], end, False)
        else:
            merged.append((start, end, repeated))
    return [(start, end) for start, end, _ in merged]


def _units(keys: list[int], ends: list[int], low: int, high: int) -> list[tuple[int, int, bool]]:
    run = _best_run(keys, ends, low, high)
    if run is None:
        return [(i, i + 1, False) for i in range(low, high)]
    start, period, repeats = run
    end = start + period * repeats
    inner = [(start + i * period, start + (i + 1) * period, True) for i in range(repeats)]
    return _units(keys, ends, low, start) + inner + _units(keys, ends, end, high)


def _best_run(keys: list[int], ends: list[int], low: int, high: int) -> tuple[int, int, int] | None:
    """(start, period, repeats) that covers most ops; of equals the shortest period, then the earliest."""
    best: tuple[int, int, int] | None = None
    covered = 0
    for period in range(1, (high - low) // 2 + 1):
        run = 0
        for index in range(low, high - period):
            # `run`: how many pieces up to here equal the one a period later.
            run = run + 1 if keys[index] == keys[index + period] else 0
            repeats = run // period + 1
            if run and run % period == 0:
                start = index + 1 - run
                total = ends[start + repeats * period] - ends[start]
                if total > covered:
                    best, covered = (start, period, repeats), total
    return best
