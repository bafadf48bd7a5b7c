"""What a plan's nested order makes of a segment: how often it is passed, how often its parameters are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def passes_of(order: Sequence[str], segment: int) -> int:
    """How often a micro-batch runs the segment forward and keeps nothing."""
    return sum(step == f"pass {segment}" for step in order)


def gathers_of(order: Sequence[str], segment: int, microbatches: int) -> int:
    """How often a step gathers what the segment drops after use: for every run that does not follow another of its."""
    runs = [int(step.partition(" ")[2]) == segment for step in order]
    inner = sum(here and not before for before, here in pairwise(runs))
    between = runs[0] and not runs[-1] if runs else False
    return microbatches * inner + (runs[0] if runs else 0) + (microbatches - 1) * between
