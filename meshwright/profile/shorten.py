"""Long runs of layers, shortened: a layer in the middle of a run is like its neighbours, so one stands for many.

In a run, every segment has the same graph, reads what the one before hands over (or what all of them read), and shares
no parameter. The first and last few are kept, as their surroundings differ; profiling then does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from meshwright.capture.program import Program, Segment

KEPT = 3
"""Of a run, at its beginning and at its end."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """firsts: for each segment of the short program, the first that it stands for; weights: how many it stands for."""

    program: Program
    firsts: tuple[int, ...]
    weights: tuple[int, ...]


def shorten(program: Program) -> Shortened:
    segments, start = program.segments, 0
    kept: list[Segment] = []
    firsts: list[int] = []
    weights: list[int] = []
    while start < len(segments):
        end = _run(segments, start)
        if end - start <= 2 * KEPT or not _closed(segments, start, end):
            end = start + 1 if end - start <= 2 * KEPT else end
            kept += segments[start:end]
            firsts += range(start, end)
            weights += [1] * (end - start)
        else:
            middle = start + KEPT - 1
            kept += [
                *segments[start : middle + 1],
                _joined(segments, middle, end - KEPT),
                *segments[end - KEPT + 1 : end],
            ]
            firsts += [*range(start, middle + 1), *range(end - KEPT, end)]
            weights += [1] * (KEPT - 1) + [end - start - 2 * KEPT + 1] + [1] * KEPT
        start = end
    return Shortened(replace(program, segments=tuple(kept)), tuple(firsts), tuple(weights))


def _run(segments: Sequence[Segment], start: int) -> int:
    """Where the run that begins here ends."""
    moves: tuple[int, ...] | None = None
    for index in range(start + 1, len(segments)):
        before, here = segments[index - 1], segments[index]
        if here.graph != before.graph or here.shared_values != before.shared_values:
            return index
        found = tuple([before.outputs.index(name) if name in before.outputs else -1 for name in here.inputs])
        carried = [k for k, place in enumerate(found) if place < 0]
        if (moves is not None and found != moves) or any(here.inputs[k] != before.inputs[k] for k in carried):
            return index
        moves = found
    return len(segments)


def _closed(segments: Sequence[Segment], start: int, end: int) -> bool:
    """Whether nobody outside reads what the middle makes, and no parameter is read twice."""
    middle = segments[start + KEPT - 1 : end - KEPT]
    outside = (*segments[:start], *segments[end:])
    own = list(chain.from_iterable(segment.params for segment in segments[start:end]))
    shared = set(own)
    made = set(chain.from_iterable(segment.outputs for segment in middle))
    read = chain.from_iterable((*segment.inputs, *segment.params) for segment in outside)
    return len(shared) == len(own) and not any(name in made or name in shared for name in read)


def _joined(segments: Sequence[Segment], middle: int, after: int) -> Segment:
    """The first segment behind the gap, reading from the one that stands for the gap."""
    names = dict(zip(segments[after - 1].outputs, segments[middle].outputs, strict=True))
    return replace(segments[after], inputs=tuple(names.get(name, name) for name in segments[after].inputs))
