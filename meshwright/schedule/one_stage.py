"""The schedule of a plan without pipeline: each segment forward, then each backward, gathers and reductions between."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.plan import Instruction, Plan
from meshwright.plan.instruction import verify


def one_stage(
    segments: int, gathered: frozenset[int], regathered: frozenset[int], microbatches: int = 1
) -> tuple[Instruction, ...]:
    """`gathered`: segments with a parameter stored otherwise (layout or dtype) than it is used; `regathered`: those
    among them that drop it after forward."""
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


def plan_instructions(plan: Plan, program: Program) -> tuple[Instruction, ...]:
    """The list that every rank of a plan of one stage runs."""
    types = {parameter.name: parameter.type.dtype for parameter in program.parameters}
    moved = {
        name for name, entry in plan.parameters.items() if (entry.storage, entry.dtype) != (entry.compute, types[name])
    }
    again = {name for name, entry in plan.parameters.items() if entry.regather}
    segments = list(enumerate(program.segments))
    gathered = frozenset(index for index, segment in segments if moved & set(segment.params))
    regathered = frozenset(index for index, segment in segments if again & set(segment.params))
    return one_stage(len(program.segments), gathered, regathered, plan.microbatches)
