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

import numpy as np

from meshwright.capture.program import Op, Ref, map_leaves

Span = tuple[int, int]
Path = tuple[str, ...]
_Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


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
    spans = _units(_Pieces(keys, ends, [shared_module(piece) for piece in pieces]))
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


def _units(pieces: _Pieces) -> list[tuple[int, int, bool]]:
    """Spans of pieces, and whether each is one of several alike: the run that covers most ops, then the same of what
    is before it and behind it."""
    found: list[tuple[int, int, bool]] = []
    ends = np.array(pieces.ends)
    todo = [(0, len(pieces.keys), _streaks(pieces.keys))]
    while todo:
        low, high, streaks = todo.pop()
        streaks = _within(streaks, low, high)
        run = _best_run(pieces, ends, streaks, high)
        if run is None:
            found += [(i, i + 1, False) for i in range(low, high)]
            continue
        start, period, repeats = run
        end = start + period * repeats
        found += [(start + i * period, start + (i + 1) * period, True) for i in range(repeats)]
        todo += [(low, start, streaks), (end, high, streaks)]
    return sorted(found)


def _streaks(pieces: Sequence[int]) -> _Ints:
    """Rows of (period, start, end), by period and then by start: each of the pieces [start, end), at least a period of
    them, equals the one a period later. There are hardly more such rows than pieces."""
    keys = np.array(pieces)
    found = [np.empty((0, 3), np.int64)]
    for period in range(1, len(keys) // 2 + 1):
        equal = keys[:-period] == keys[period:]
        if np.count_nonzero(equal) < period:
            continue
        edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
        starts, ends = edges[::2], edges[1::2]
        long = ends - starts >= period
        if long.any():
            found.append(np.stack([np.full(long.sum(), period), starts[long], ends[long]], axis=1))
    return np.concatenate(found)


def _within(streaks: _Ints, low: int, high: int) -> _Ints:
    """Those that are left of them in [low, high)."""
    period, start, end = streaks.T
    start, end = np.maximum(start, low), np.minimum(end, high - period)
    rows: _Ints = np.stack([period, start, end], axis=1)[end - start >= period]
    return rows


def _best_run(pieces: _Pieces, ends: _Ints, streaks: _Ints, high: int) -> tuple[int, int, int] | None:
    """(start, period, repeats) that covers most ops; of equals the shortest period, then the earliest."""
    if not len(streaks):
        return None
    period, start, end = streaks.T
    repeats = (end - start) // period + 1
    best = int(np.argmax(ends[start + repeats * period] - ends[start]))
    return _aligned(pieces, int(start[best]), int(period[best]), int(repeats[best]), high)


def _aligned(pieces: _Pieces, start: int, period: int, repeats: int, high: int) -> tuple[int, int, int]:
    """The same run, begun later if its units then lie deeper in one module; all such runs have as many ops."""
    end = start + period * repeats
    while end < high and pieces.keys[end] == pieces.keys[end - period]:
        end += 1
    places = range(start, end - period * repeats + 1)
    return max(places, key=lambda place: (pieces.depth(place, place + period), -place)), period, repeats


def shared_module(piece: Sequence[Op]) -> Path:
    return _shared([tuple(op.module.split(".")) for op in piece if op.module])


def _shared(paths: Sequence[Path]) -> Path:
    """What all paths begin with."""
    if not paths:
        return ()
    low, high = min(paths), max(paths)
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))]
