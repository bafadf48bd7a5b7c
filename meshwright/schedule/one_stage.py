"""The schedule of a plan without pipeline: each segment forward, then each backward, gathers and reductions between.

Values that leave the device between forward and backward: where in a list their copies begin and end.

`offload 3 mb0` stands after the forward that made them and begins the copy; `release 3 mb0`, after the next forward,
waits for it and lets go of what is on the device. `fetch 3 mb0` stands before the next segment's backward and begins
to bring them back; their own backward waits. So one segment's values at a time are on their way during another's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright.capture.program import Program
from meshwright.plan import Instruction, Plan
from meshwright.plan.instruction import verify
from meshwright.plan.order import parse_order
from meshwright.profile.lookup import lookup_segments
from meshwright.schedule.nested import nested
from meshwright.schedule.reads import reads_of


def one_stage(
    segments: int,
    gathered: frozenset[int],
    regathered: frozenset[int],
    microbatches: int = 1,
    sharing: frozenset[tuple[int, int]] = frozenset(),
    lookups: frozenset[int] = frozenset(),
) -> tuple[Instruction, ...]:
    """`gathered`: segments with a parameter stored otherwise (layout or dtype) than it is used; `regathered`: those
    among them that drop it after forward. `sharing`: pairs of segments that drop the same parameter. `lookups`: those
    whose backward reads none; it is gathered before one only where a forward of the segment comes next.

    A gather stands before the segment that runs before its own, and overlaps it. A segment that runs twice in a row
    keeps what it has.
    """
    runs = [
        Instruction(kind, segment, microbatch)
        for microbatch in range(microbatches)
        for kind, order in (("forward", range(segments)), ("backward", reversed(range(segments))))
        for segment in order
    ]
    again = [one.segment == other.segment for one, other in pairwise(runs)]
    keeps = [False, *again, False]
    reads = [run.kind == "forward" or run.segment not in lookups or keeps[at + 1] for at, run in enumerate(runs)]
    needed = [
        (run.segment in regathered and not keeps[at] and reads[at]) or (run.segment in gathered and at < segments)
        for at, run in enumerate(runs)
    ]
    late = [True, *((one.segment, other.segment) in sharing for one, other in pairwise(runs))]
    found: list[Instruction] = []

    def begin(at: int) -> None:
        """Gathers that stand before a run: its own, where it had to wait for the run before, and the next one's."""
        for this in (at, at + 1):
            if this < len(runs) and needed[this] and late[this] == (this == at):
                found.append(Instruction("gather", runs[this].segment))

    begin(0)
    for at, run in enumerate(runs):
        found.append(run)
        if run.segment in regathered and not keeps[at + 1] and (reads[at] or keeps[at]):
            found.append(Instruction("free", run.segment))
        begin(at + 1)
        if run.kind == "backward" and run.microbatch == microbatches - 1:
            found.append(Instruction("reduce", run.segment))
    found.append(Instruction("step"))
    verify(found)
    return tuple(found)


def plan_instructions(plan: Plan, program: Program) -> tuple[Instruction, ...]:
    """The list that every rank of a plan of one stage runs."""
    types = {parameter.name: parameter.type.dtype for parameter in program.parameters}
    moved = {name for name, entry in plan.parameters.items() if entry.moves(types[name])}
    again = {name for name, entry in plan.parameters.items() if entry.reshard_after_forward}
    segments = list(enumerate(program.segments))
    gathered = frozenset(index for index, segment in segments if moved & set(segment.params))
    regathered = frozenset(index for index, segment in segments if again & set(segment.params))
    if plan.order:
        steps = parse_order(plan.order, len(segments))
        return nested(steps, reads_of(program), gathered, regathered, plan.microbatches)
    users = {name: program.uses_of(name) for name in again}
    sharing = frozenset((a, b) for uses in users.values() for a in uses for b in uses if a != b)
    away = frozenset(index for index, _ in segments if plan.choice(index).offload)
    found = one_stage(len(segments), gathered, regathered, plan.microbatches, sharing, lookup_segments(program))
    return with_away(found, away, len(segments)) if away else found


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
