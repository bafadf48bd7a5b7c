"""Merging natural pieces to the shortest repeating unit: a transformer layer, a residual block.

The pieces' structures form a sequence; the run of repeats that covers most ops is found, its unit merged, and
the rest treated the same way. Where a unit could begin at several places, it begins where it lies within one module.
What repeats nowhere is merged up to the size of the largest unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from meshwright.capture.program import Op, Ref, map_leaves

Span = tuple[int, int]
Path = tuple[str, ...]


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
    spans = _units(_Pieces(keys, ends, [_module(piece) for piece in pieces]), 0, len(pieces))
    unit = max((ends[b] - ends[a] for a, b, repeated in spans if repeated), default=largest)
    merged: list[tuple[int, int, bool]] = []
    for start, end, repeated in spans:
        if merged and not repeated and not merged[-1][2] and ends[end] - ends[merged[-1][0]] <= unit:
            merged[-1] = (merged[-1][0], end, False)
        else:
            merged.append((start, end, repeated))
    return [(start, end) for start, end, _ in merged]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """keys: equal where structures are. ends: ops before each piece, and all. modules: the module of each piece."""

    keys: list[int]
    ends: list[int]
    modules: list[Path]

    def depth(self, start: int, end: int) -> int:
        """How deep the module lies that holds all these pieces."""
        return len(_shared(self.modules[start:end]))


def _units(pieces: _Pieces, low: int, high: int) -> list[tuple[int, int, bool]]:
    run = _best_run(pieces, low, high)
    if run is None:
        return [(i, i + 1, False) for i in range(low, high)]
    start, period, repeats = run
    end = start + period * repeats
    inner = [(start + i * period, start + (i + 1) * period, True) for i in range(repeats)]
    return _units(pieces, low, start) + inner + _units(pieces, end, high)


def _best_run(pieces: _Pieces, low: int, high: int) -> tuple[int, int, int] | None:
    """(start, period, repeats) that covers most ops; of equals the shortest period, then the earliest."""
    keys, ends = pieces.keys, pieces.ends
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
    return None if best is None else _aligned(pieces, *best, high)


def _aligned(pieces: _Pieces, start: int, period: int, repeats: int, high: int) -> tuple[int, int, int]:
    """The same run, begun later if its units then lie deeper in one module; all such runs have as many ops."""
    end = start + period * repeats
    while end < high and pieces.keys[end] == pieces.keys[end - period]:
        end += 1
    places = range(start, end - period * repeats + 1)
    return max(places, key=lambda place: (pieces.depth(place, place + period), -place)), period, repeats


def _module(piece: Sequence[Op]) -> Path:
    return _shared([tuple(op.module.split(".")) for op in piece if op.module])


def _shared(paths: Sequence[Path]) -> Path:
    """What all paths begin with."""
    if not paths:
        return ()
    low, high = min(paths), max(paths)
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))]
