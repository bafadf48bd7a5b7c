"""Which segments may be joined to runs, and how long runs are.

Segments follow each other without a break where nothing stands between their forwards, nor between their backwards, in
any micro-batch: no message, no gather, no reduction that moves anything. Handing over gradients that are already where
they are stored is no break: it can be done after the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import ceil

from meshwright.capture.program import Program
from meshwright.plan import Instruction, Plan, Stage
from meshwright.price.buckets import is_home, moves
from meshwright.profile.operands import packet

MOST_OPS = 400
"""Of a compiled unit: compiling takes time in proportion to its ops, and next to so many a call costs nothing."""

Range = tuple[int, int]


def chains(plan: Plan, program: Program, stage: Stage, instructions: Sequence[Instruction]) -> list[Range]:
    """The longest stretches of the stage's segments that follow each other without a break: (first, end)."""
    if plan.order:
        return []
    played = [one for one in instructions if not (one.kind == "step" or _idle(plan, program, stage, one))]
    apart = {
        one.segment
        for one in played
        if one.kind not in ("forward", "backward") and one.microbatch is not None and one.peer is None
    }
    follows = {
        (one.kind, one.segment, other.segment, one.microbatch) for one, other in pairwise(played) if _meet(one, other)
    }
    numbers = {one.microbatch for one in played if one.kind == "forward"}

    def joined(index: int) -> bool:
        whole = all(_whole(plan, program, i) and i not in apart for i in (index, index + 1))
        there = all(("forward", index, index + 1, number) in follows for number in numbers)
        return whole and there and all(("backward", index + 1, index, number) in follows for number in numbers)

    found, first = [], stage.first
    for index in stage.segments:
        if index + 1 == stage.end or not joined(index):
            found.append((first, index + 1))
            first = index + 1
    return [(first, end) for first, end in found if end - first > 1]


def _whole(plan: Plan, program: Program, index: int) -> bool:
    """It does not run in chunks, and what its plan names is named the same in a run: what is made for backward alone is
    counted over a whole graph. A buffer that two segments write has no order in a run. An embedding's gradient is
    filled with zeros when its graph begins: in a run it would lie there all through backward."""
    choice, graph = plan.choice(index), program.graphs[program.segments[index].graph]
    told = any(name.startswith("backward~") for name in (*choice.recompute, *choice.keep))
    shared = graph.updates and any(
        set(program.segments[index].buffers) & set(other.buffers)
        for number, other in enumerate(program.segments)
        if number != index
    )
    looks_up = any(packet(op.target) == "embedding" for op in graph.ops)
    return choice.chunks == 1 and not told and not shared and not looks_up


def _meet(one: Instruction, other: Instruction) -> bool:
    return one.kind == other.kind and one.microbatch == other.microbatch and one.peer is None and other.peer is None


def _idle(plan: Plan, program: Program, stage: Stage, one: Instruction) -> bool:
    """A reduction that only hands over: its gradients are where, and in the dtype in which, they are stored; a gather
    of what is computed with as it is stored."""
    if one.segment is None or one.segment not in stage.segments or stage.tied_replicas:
        return False
    names = program.segments[one.segment].params
    if one.kind in ("gather", "free"):
        return not any(moves(plan, program, name) for name in names)
    return one.kind == "reduce" and all(
        is_home(plan, program, name) and plan.parameters[name].dtype == program.parameter(name).type.dtype
        for name in names
    )


def divided(chain: Range, kinds: Sequence[object], ops: Sequence[int], most: int = MOST_OPS) -> list[Range]:
    """A chain as units of at most so many ops. kinds, ops: of each of its segments; a stretch of alike segments is cut
    into equal units where it can be, which are compiled once."""
    first, end = chain
    if sum(ops) <= most:
        return [chain]
    found: list[Range] = []
    at, room = first, 0
    for _, group in groupby(range(end - first), key=kinds.__getitem__):
        alike = list(group)
        each = max(1, ops[alike[0]])
        if len(alike) * each <= most:  # goes with what stands before it, where there is room
            if not found or room < len(alike) * each:
                found.append((at, at + len(alike)))
                room = most
            else:
                found[-1] = (found[-1][0], at + len(alike))
            room -= len(alike) * each
            at += len(alike)
            continue
        size = _unit(len(alike), most // each)
        found += [(at + k, at + min(k + size, len(alike))) for k in range(0, len(alike), size)]
        at, room = at + len(alike), 0
    return [(a, b) for a, b in found if b - a > 1]


def _unit(count: int, most: int) -> int:
    """The largest divisor of `count` that is at most `most`, unless it is less than half of that."""
    if most < 2:
        return 1
    even = max(size for size in range(1, most + 1) if count % size == 0)
    return even if 2 * even >= most else ceil(count / ceil(count / most))
