"""Uneven shards: which sizes may be cut into pieces of different lengths.

Ranks wait for the one with the largest piece, so an uneven cut is offered only where every rank has a piece and the
largest is at most a quarter larger than an even one. Samples are always cut evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.planner.effort import ROUGH
from meshwright.rules import Way


def is_worth(length: int, pieces: int) -> bool:
    """Whether `torch.chunk` cuts this into as many pieces, of about one length but not all of the same."""
    width = -(-length // pieces)
    return length % pieces != 0 and (pieces - 1) * width < length and width * pieces <= ROUGH * length


def may_help(shapes: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> bool:
    """Whether some dim could be cut unevenly by some axis."""
    return any(is_worth(length, size) for length in {n for shape in shapes for n in shape} for size in sizes)


def worthwhile(
    shapes: Sequence[tuple[int, ...]], samples: Sequence[frozenset[int]], size: int, ways: Sequence[Way]
) -> list[Way]:
    """The ways of an axis without uneven cuts that lose too much.

    samples: of each operand and result, the dims that hold samples.
    """

    def is_wanted(way: Way) -> bool:
        states = zip((*way.operands, *way.results), shapes, samples, strict=True)
        cut = [(shape[state.dim], state.dim in own) for state, shape, own in states if state.dim is not None]
        return all(length % size == 0 or (not sample and is_worth(length, size)) for length, sample in cut)

    return [way for way in ways if is_wanted(way)]
