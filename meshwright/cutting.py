"""How a batch is cut into micro-batches: all of one size, but the last, which may be smaller."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from meshwright.errors import PlanError

WIDE = 4

MOST = 1 << 16
"""Micro-batches that are thought of, unless more are asked for."""

MOST_NAMED = 12
"""Numbers that a refusal names: all that there are, or the nearest."""


def cut_batch(batch: int, microbatches: int) -> tuple[int, int]:
    """(samples of each micro-batch, samples of the last one)."""
    each = -(-batch // microbatches)
    return each, batch - (microbatches - 1) * each


def even_cuts(batch: int) -> list[int]:
    """Numbers of micro-batches that divide the batch, rising."""
    return [n for n in range(1, min(batch, MOST) + 1) if batch % n == 0]


def batch_cuts(batch: int, most: int = MOST) -> list[int]:
    """Numbers of micro-batches worth a look, rising: those that divide the batch, and where two of them are more than
    WIDE times apart, those of micro-batches of 2, 4, 8, ... samples between them, the last one smaller."""
    even = [*even_cuts(batch), batch]
    found = set(even)
    sizes = [1 << power for power in range(1, batch.bit_length())]
    for less, more in pairwise(even):
        if more > WIDE * less:
            found |= {n for n in (ceil(batch / size) for size in sizes) if less < n < more}
    return [n for n in sorted(found) if n <= most]


def has_samples(batch: int, microbatches: int, ranks: int = 1) -> bool:
    """Whether every micro-batch has some, as many for each of the ranks."""
    if microbatches < 1:
        return False
    each, last = cut_batch(batch, microbatches)
    return last > 0 and each % ranks == 0 and last % ranks == 0


def check_cut(given: str, batch: int, microbatches: int, hint: str, ranks: int = 1) -> None:
    """Raises PlanError where a micro-batch would have no samples, or not as many for each of the ranks."""
    if has_samples(batch, microbatches, ranks):
        return
    last = max(1, min(batch, microbatches + MOST))
    fits = [n for n in range(max(1, last - 2 * MOST), last + 1) if has_samples(batch, n, ranks)]
    equal = f", as many for each of {ranks} ranks" if ranks > 1 else ""
    allowed = nearest(fits, microbatches) if fits else "of which there is none"
    raise PlanError(given, f"a number of micro-batches that leaves samples for the last one{equal}, {allowed}", hint)


def nearest(fits: Sequence[int], asked: int) -> str:
    """What a refusal names of the numbers that do."""
    near = sorted(sorted(fits, key=lambda n: abs(n - asked))[:MOST_NAMED])
    return ("one of " if len(near) == len(fits) else "such as ") + ", ".join(map(str, near))
