"""`verify_lists`: whether the lists of all stages, run together, come to an end and compute one step.

Every send has its receive and the order of a channel is the same at both ends; what an instruction reads is there;
each micro-batch's gradient is counted once; no stage has more in flight than said; and with so few buffers that a
stage may have only `buffers` unfinished sends to another, no stage waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright.errors import PlanError, VerifyError, counted
from meshwright.plan import Instruction
from meshwright.plan.instruction import SENDS, verify
from meshwright.schedule.messages import Messages, read_messages
from meshwright.schedule.pipeline import Reads


def verify_lists(
    lists: Sequence[Sequence[Instruction]],
    *,
    reads: Reads | None = None,
    buffers: int = 1,
    in_flight: Sequence[int] | None = None,
) -> None:
    """Raises VerifyError with the instruction and the stage. `buffers`: with 0, a stage waits for each send to be over.
    `in_flight`: the most of any segment's micro-batches, summed over its runs, that a stage may hold; see `in_flight`.
    """
    _check_limits(len(lists), buffers, in_flight)
    for instructions in lists:
        verify(instructions)
    messages = read_messages(lists, reads)
    _check_counted_once(lists, messages)
    _check_ends(lists, messages, buffers)
    if in_flight is not None:
        for stage, (most, allowed) in enumerate(zip(map(most_in_flight, lists), in_flight, strict=True)):
            if most > allowed:
                raise VerifyError(f"stage {stage} has {most} micro-batches in flight", f"{allowed} at most")


def _check_limits(stages: int, buffers: object, in_flight: Sequence[int] | None) -> None:
    if not isinstance(buffers, int) or buffers < 0:
        raise PlanError(
            f"buffers={buffers!r}", "a whole number from 0", "use 1, or what schedule.check.least_buffers finds"
        )
    if in_flight is not None and len(in_flight) != stages:
        raise PlanError(
            f"in_flight={list(in_flight)} for {counted(stages, 'stage')}",
            f"{counted(stages, 'number')}, one for each stage",
            "use in_flight(schedule, stages, microbatches)",
        )


def least_buffers(lists: Sequence[Sequence[Instruction]], reads: Reads | None = None) -> int:
    """The fewest unfinished sends to another stage with which the lists come to an end."""
    messages = read_messages(lists, reads)
    for buffers in range(len(messages.keys) + 1):
        if not _stuck(lists, messages, buffers):
            return buffers
    _check_ends(lists, messages, len(messages.keys))
    return len(messages.keys)


def most_in_flight(instructions: Sequence[Instruction]) -> int:
    """The most runs of micro-batches held at once: forwards begun less backwards ended. Consecutive segments that
    always run together are one run."""
    heads = _heads(instructions)
    held = most = 0
    for one in instructions:
        if one.segment in heads:
            held += one.kind == "forward"
            most = max(most, held)
            held -= one.kind in ("backward", "backward_weight")
    return most


def _heads(instructions: Sequence[Instruction]) -> set[int]:
    """The first segment of each run: one whose forward never follows directly on that of the segment before."""
    order = [(one.segment, one.microbatch) for one in instructions if one.kind == "forward" and one.segment is not None]
    pairs = set(pairwise(order))
    found = set()
    for segment in {segment for segment, _ in order}:
        batches = [microbatch for other, microbatch in order if other == segment]
        if not all(((segment - 1, m), (segment, m)) in pairs for m in batches):
            found.add(segment)
    return found


def _check_counted_once(lists: Sequence[Sequence[Instruction]], messages: Messages) -> None:
    """All segments run the same micro-batches, and each segment's gradient is reduced once, before the step."""
    ran: dict[int, set[int]] = {segment: set() for segment in messages.stage_of}
    for stage, instructions in enumerate(lists):
        reduced: list[int] = []
        for one in instructions:
            if one.kind == "forward":
                assert one.segment is not None
                assert one.microbatch is not None
                ran[one.segment].add(one.microbatch)
            elif one.kind == "reduce":
                assert one.segment is not None
                reduced.append(one.segment)
        own = [segment for segment, at in messages.stage_of.items() if at == stage]
        if sorted(reduced) != own:
            raise VerifyError(f"stage {stage} reduces segments {sorted(reduced)}", f"each of {own} once")
        if [one.kind for one in instructions].count("step") != 1 or instructions[-1].kind != "step":
            raise VerifyError(f"stage {stage} does not end with its step", "one step, last")
    every = set().union(*ran.values())
    for segment, batches in ran.items():
        if batches != set(range(len(every))):
            raise VerifyError(f"segment {segment} runs micro-batches {sorted(batches)}", f"0 to {len(every) - 1}")


def _check_ends(lists: Sequence[Sequence[Instruction]], messages: Messages, buffers: int) -> None:
    stuck = _stuck(lists, messages, buffers)
    if stuck:
        raise VerifyError(f"the stages wait for each other: {', '.join(stuck)}", "lists that come to an end")


def _stuck(lists: Sequence[Sequence[Instruction]], messages: Messages, buffers: int) -> list[str]:
    """Play the lists without time: a send is over when its receive has begun and the one before it is over.

    A stage goes on from a send only when the `buffers`-th send before it on that channel is over.
    """
    begun = [0] * len(messages.keys)
    over = [False] * len(messages.keys)
    after = {before: message for message, before in enumerate(messages.before) if before >= 0}
    # All else that a stage does neither waits nor is waited for.
    stops = [
        sorted({*waits, *(index for index, message in enumerate(own) if message >= 0)})
        for waits, own in zip(messages.waits, messages.own, strict=True)
    ]
    places = [0] * len(lists)
    asleep: dict[int, list[int]] = {}
    ready = list(range(len(lists)))
    while ready:
        stage = ready.pop()
        waits, own, instructions = messages.waits[stage], messages.own[stage], lists[stage]
        while places[stage] < len(stops[stage]):
            index = stops[stage][places[stage]]
            missing = next((m for m in waits.get(index, ()) if not over[m]), -1)
            if missing < 0 and own[index] >= 0:
                message, sends = own[index], instructions[index].kind in SENDS
                begun[message] |= 1 if sends else 2
                while message >= 0 and begun[message] == 3 and not over[message]:
                    if messages.before[message] >= 0 and not over[messages.before[message]]:
                        break
                    over[message] = True
                    ready += asleep.pop(message, [])
                    message = after.get(message, -1)
                if sends:
                    oldest = own[index]
                    for _ in range(buffers):
                        oldest = messages.before[oldest] if oldest >= 0 else -1
                    missing = oldest if oldest >= 0 and not over[oldest] else -1
            if missing >= 0:
                asleep.setdefault(missing, []).append(stage)
                break
            places[stage] += 1
    pairs = enumerate(zip(places, stops, strict=True))
    return [f"stage {stage} at `{lists[stage][one[place]]}`" for stage, (place, one) in pairs if place < len(one)]
