"""Figures of ranges: overlapped seconds, largest transients, and dominance between rows of the same range."""

from __future__ import annotations

import numpy as np

from meshwright.caches import CACHES
from meshwright.planner.pipeline.sharded_chains import FIRST, LAST, RESIDENT, STATIC, STEP, SUMS, Floats, ShardedChain
from meshwright.planner.stages.options import Bools, Ints


def hidden_s(figures: Floats, interleaved: bool) -> Floats:
    """Upper bound on the seconds of a range's gathers and reductions that overlap compute.

    They overlap the first micro-batch's forward and the last one's backward, and under interleaving all other runs.
    """
    moved: Floats = figures[:, FIRST] + figures[:, LAST]
    return moved if interleaved else np.minimum(moved, figures[:, :FIRST].sum(axis=1))


def largest_transients(sharded: ShardedChain, level: int, begin: Ints, end: Ints) -> Floats:
    """The largest transients of the segments [begin, end), by a sparse table; zero where there are none."""
    key = (id(sharded), level)
    if key not in _known_windows:
        if len(_known_windows) > 512:
            _known_windows.clear()
        _known_windows[key] = (sharded, _windows(sharded.figures[level, :, SUMS:]))
    windows, length = _known_windows[key][1], end - begin
    power = np.log2(np.maximum(length, 1)).astype(np.int64)
    found: Floats = np.maximum(windows[power, begin], windows[power, end - (1 << power)])
    return np.where((length > 0)[:, None], found, 0.0)


def _windows(figures: Floats) -> Floats:
    """The sparse table: [power, i] is the largest of 2^power figures from i on."""
    count = len(figures)
    found = [np.concatenate([figures, np.zeros((1, figures.shape[1]))])]
    while 2 ** len(found) <= count:
        after = np.minimum(np.arange(count + 1) + 2 ** (len(found) - 1), count)
        found.append(np.maximum(found[-1], found[-1][after]))
    return np.stack(found)


_known_windows: dict[tuple[int, int], tuple[ShardedChain, Floats]] = CACHES.own({})


def undominated(figures: Floats, fits: Bools, microbatches: int) -> tuple[Ints, Ints]:
    """(stops, ranges) of the rows that no other row of the same range dominates in seconds, held and resident bytes.

    Sorted by range, then by seconds.
    figures: [stop, range].
    """
    seconds = microbatches * figures[..., :FIRST].sum(axis=2) + figures[..., FIRST : STEP + 1].sum(axis=2)
    held = figures[..., STATIC] + figures[..., SUMS:].max(axis=2)
    resident = figures[..., RESIDENT]
    keep = fits.copy()
    for one in range(len(figures)):
        for other in range(len(figures)):
            if one == other:
                continue
            less = (held[other] <= held[one]) & (resident[other] <= resident[one])
            same = (held[other] == held[one]) & (resident[other] == resident[one]) & (other < one)
            quicker = (seconds[other] < seconds[one]) | (seconds[other] == seconds[one]) & (
                same | (held[other] < held[one]) | (held[other] == held[one]) & (resident[other] < resident[one])
            )
            keep[one] &= ~(fits[other] & less & quicker)
    stop, place = np.nonzero(keep)
    order = np.lexsort((resident[stop, place], held[stop, place], seconds[stop, place], place))
    return stop[order], place[order]
