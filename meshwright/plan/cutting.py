"""How a batch is cut into micro-batches: all of one size, but the last, which may be smaller."""

from __future__ import annotations

from math import ceil

from meshwright.errors import PlanError


def cut_batch(batch: int, microbatches: int) -> tuple[int, int]:
    """(samples of each micro-batch, samples of the last one)."""
    each = ceil(batch / microbatches)
    return each, batch - (microbatches - 1) * each


def check_cut(given: str, batch: int, microbatches: int, hint: str) -> None:
    """Raises PlanError where a micro-batch would have no samples."""
    if microbatches < 1 or cut_batch(batch, microbatches)[1] < 1:
        fits = [n for n in range(1, batch + 1) if cut_batch(batch, n)[1] > 0]
        near = sorted(sorted(fits, key=lambda n: abs(n - microbatches))[:3])
        raise PlanError(
            given,
            "a number of micro-batches that leaves samples for the last one, such as " + ", ".join(map(str, near)),
            hint,
        )
