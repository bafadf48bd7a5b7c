"""Values that leave the device between forward and backward: where in a list their copies begin and end.

`offload 3 mb0` stands after the forward that made them and begins the copy; `release 3 mb0`, after the next forward,
waits for it and lets go of what is on the device. `fetch 3 mb0` stands before the next segment's backward and begins
to bring them back; their own backward waits. So one segment's values at a time are on their way during another's work.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.plan import Instruction
from meshwright.plan.instruction import verify


def with_away(instructions: Sequence[Instruction], away: frozenset[int], segments: int) -> tuple[Instruction, ...]:
    """`away`: segments some of whose saved values leave; not the last."""
    found: list[Instruction] = []
    for one in instructions:
        index, micro = one.segment, one.microbatch
        if one.kind == "backward" and index is not None and index - 1 in away:
            found.append(Instruction("fetch", index - 1, micro))
        found.append(one)
        if one.kind == "forward" and index is not None:
            if index - 1 in away:
                found.append(Instruction("release", index - 1, micro))
            if index in away and index < segments - 1:
                found.append(Instruction("offload", index, micro))
    verify(found)
    return tuple(found)
