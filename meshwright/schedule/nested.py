"""Nested orders of a chain: segments that run forward more than once, so that less lies between forward and backward.

A plan's `order` is one micro-batch's, a text a step: `pass 3` runs a segment forward and keeps nothing but what it
hands on, `forward 3` keeps what its backward reads, `backward 3`. Every segment is passed any number of times, then run
forward, then backward. What a segment hands on goes where no later step reads it before it is recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.errors import PlanError
from meshwright.plan import Instruction
from meshwright.plan.instruction import verify
from meshwright.plan.order import Steps

Reads = Sequence[tuple[int, int]]
"""(segment that makes a value, segment that reads it)."""


def drops(steps: Steps, reads: Reads) -> list[list[int]]:
    """Per step, the segments whose values go after it. Raises PlanError where a step reads what is not there."""
    readers: dict[int, set[int]] = {}
    for maker, reader in reads:
        readers.setdefault(maker, set()).add(reader)
    there: set[int] = set()
    found: list[list[int]] = []
    for at, (kind, segment) in enumerate(steps):
        if kind != "backward":
            missing = [maker for maker, reader in reads if reader == segment and maker not in there]
            if missing:
                expected = f"what layer {missing[0]} makes, before it"
                raise PlanError(f"order has the step '{kind} {segment}'", expected, "undo the edit")
            there.add(segment)
        gone = [maker for maker in there if not _read_later(maker, steps[at + 1 :], readers.get(maker, set()))]
        there -= set(gone)
        found.append(sorted(gone))
    return found


def _read_later(maker: int, steps: Steps, readers: set[int]) -> bool:
    """Whether a value is read before it is recomputed."""
    for kind, segment in steps:
        if kind != "backward" and segment in readers:
            return True
        if kind != "backward" and segment == maker:
            return False
    return False


def nested(
    steps: Steps, reads: Reads, gathered: frozenset[int], regathered: frozenset[int], microbatches: int = 1
) -> tuple[Instruction, ...]:
    """The list of a plan of one stage; the sets as in `one_stage`. A segment that runs twice in a row keeps what it
    has; any other run gathers again what was dropped."""
    gone = drops(steps, reads)
    found: list[Instruction] = []
    have: set[int] = set()
    runs = [(*step, dropped, micro) for micro in range(microbatches) for step, dropped in zip(steps, gone, strict=True)]
    for at, (kind, segment, dropped, microbatch) in enumerate(runs):
        before, after = (runs[k][1] if 0 <= k < len(runs) else None for k in (at - 1, at + 1))
        if (segment in regathered and before != segment) or segment in gathered - have:
            found.append(Instruction("gather", segment))
            have.add(segment)
        found.append(Instruction(kind, segment, microbatch))
        found += [Instruction("drop", one, microbatch) for one in dropped]
        if segment in regathered and after != segment:
            found.append(Instruction("free", segment))
        if kind == "backward" and microbatch == microbatches - 1:
            found.append(Instruction("reduce", segment))
    found.append(Instruction("step"))
    verify(found)
    return tuple(found)
