"""A plan's nested order, a text a step: how it is read, and what it makes of a segment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright.errors import PlanError

Steps = tuple[tuple[str, int], ...]
"""What is done with which segment."""

RUNS = "passes, then one forward, then one backward of each layer"


def parse_order(order: Sequence[str], segments: int) -> Steps:
    """Raises PlanError where a segment is not run forward and backward once each, in this order."""
    found: list[tuple[str, int]] = []
    ran: dict[int, int] = {}
    for text in order:
        kind, _, number = text.partition(" ")
        plain = number.isascii() and number.isdecimal() and len(number) <= 9
        if kind not in ("pass", "forward", "backward") or not plain or int(number) >= segments:
            last = f"`backward {segments - 1}`"
            raise PlanError(f"order has the step {text!r}", f"one such as `pass 0` or {last}", "undo the edit")
        segment = int(number)
        wanted = {"pass": (0,), "forward": (0,), "backward": (1,)}[kind]
        if ran.get(segment, 0) not in wanted:
            raise PlanError(f"order has the step {text!r}, out of turn", RUNS, "undo the edit")
        ran[segment] = ran.get(segment, 0) + (kind != "pass")
        found.append((kind, segment))
    missing = [segment for segment in range(segments) if ran.get(segment, 0) != 2]
    if missing:
        raise PlanError(f"order lacks layer {missing[0]}", RUNS, "undo the edit")
    return tuple(found)


def passes_of(order: Sequence[str], segment: int) -> int:
    """How often a micro-batch runs the segment forward and keeps nothing."""
    return sum(step == f"pass {segment}" for step in order)


def gathers_of(order: Sequence[str], segment: int, microbatches: int) -> int:
    """How often a step gathers what the segment drops after use: for every run that does not follow another of its."""
    runs = [int(step.partition(" ")[2]) == segment for step in order]
    inner = sum(here and not before for before, here in pairwise(runs))
    between = runs[0] and not runs[-1] if runs else False
    return microbatches * inner + (runs[0] if runs else 0) + (microbatches - 1) * between
