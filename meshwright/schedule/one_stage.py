"""The schedule of a plan without pipeline: each segment forward, then each backward, gathers and reductions between."""

from __future__ import annotations

from meshwright.plan import Instruction
from meshwright.plan.instruction import verify


def one_stage(
    segments: int, gathered: frozenset[int], regathered: frozenset[int], microbatches: int = 1
) -> tuple[Instruction, ...]:
    """`gathered`: segments with a parameter stored otherwise than it is used; `regathered`: those among them
    that drop it after forward."""
    found: list[Instruction] = []
    for microbatch in range(microbatches):
        for segment in range(segments):
            if segment in regathered or (segment in gathered and microbatch == 0):
                found.append(Instruction("gather", segment))
            found.append(Instruction("forward", segment, microbatch))
            if segment in regathered:
                found.append(Instruction("free", segment))
        for segment in reversed(range(segments)):
            if segment in regathered:
                found.append(Instruction("gather", segment))
            found.append(Instruction("backward", segment, microbatch))
            if segment in regathered:
                found.append(Instruction("free", segment))
            if microbatch == microbatches - 1:
                found.append(Instruction("reduce", segment))
    found.append(Instruction("step"))
    verify(found)
    return tuple(found)
