"""What the lists of all stages say together: the messages between them, and which instruction waits for which.

Read once, for `verify_lists` and for the simulator: both play the same thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.errors import VerifyError
from meshwright.plan import Instruction
from meshwright.plan.instruction import RECEIVES, SENDS
from meshwright.schedule.pipeline import Reads

Key = tuple[bool, int, int, int, int]
"""Gradient or not, segment, micro-batch, source stage, target stage."""


@dataclass(frozen=True, slots=True)
class Messages:
    """keys: each message once. own[stage][index]: the message an instruction sends or receives, or -1. waits: those it
    waits for. before[message]: the one sent before it from the same source to the same target, or -1."""

    keys: tuple[Key, ...]
    own: tuple[tuple[int, ...], ...]
    waits: tuple[dict[int, tuple[int, ...]], ...]
    before: tuple[int, ...]
    stage_of: dict[int, int]


def read_messages(lists: Sequence[Sequence[Instruction]], reads: Reads | None = None) -> Messages:
    """`reads`: who reads whose values; each segment those of the one before unless given."""
    stage_of = _stages(lists)
    makers: dict[int, list[int]] = {}
    users: dict[int, list[int]] = {}
    for producer, reader in reads if reads is not None else [(i - 1, i) for i in stage_of if i - 1 in stage_of]:
        makers.setdefault(reader, []).append(producer)
        users.setdefault(producer, []).append(reader)
    numbers: dict[Key, int] = {}
    before: list[int] = []
    channels: dict[tuple[bool, int, int], list[int]] = {}
    for stage, instructions in enumerate(lists):
        for one in instructions:
            if one.kind in SENDS:
                key = _key(one, stage)
                if key in numbers:
                    raise VerifyError(f"`{one}` stands twice on stage {stage}", "each value sent once to a stage")
                numbers[key] = len(numbers)
                channel = channels.setdefault((key[0], key[3], key[4]), [])
                before.append(channel[-1] if channel else -1)
                channel.append(numbers[key])
    readers = [_Reader(stage, makers, users, stage_of, numbers) for stage in range(len(lists))]
    own = tuple(tuple(map(reader.read, instructions)) for reader, instructions in zip(readers, lists, strict=True))
    _check_receives(tuple(numbers), own, lists)
    return Messages(tuple(numbers), own, tuple(reader.waits for reader in readers), tuple(before), stage_of)


def _key(one: Instruction, stage: int) -> Key:
    assert one.segment is not None
    assert one.microbatch is not None
    assert one.peer is not None
    ends = (stage, one.peer) if one.kind in SENDS else (one.peer, stage)
    return (one.kind.endswith("gradient"), one.segment, one.microbatch, *ends)


def _stages(lists: Sequence[Sequence[Instruction]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for stage, instructions in enumerate(lists):
        for one in instructions:
            if one.kind == "forward":
                assert one.segment is not None
                if found.setdefault(one.segment, stage) != stage:
                    raise VerifyError(f"`{one}` on stages {found[one.segment]} and {stage}", "one stage a segment")
    return dict(sorted(found.items()))


@dataclass(slots=True)
class _Reader:
    """Walks one stage's list: what has arrived so far, and for which instruction that matters."""

    stage: int
    makers: dict[int, list[int]]
    users: dict[int, list[int]]
    stage_of: dict[int, int]
    numbers: dict[Key, int]
    waits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    index: int = -1
    arrived: dict[tuple[bool, int, int], list[int]] = field(default_factory=dict)
    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    done: set[tuple[str, int, int]] = field(default_factory=set)

    def read(self, one: Instruction) -> int:
        self.index += 1
        if one.microbatch is None or one.segment is None:
            return -1
        segment, microbatch = one.segment, one.microbatch
        if one.kind in RECEIVES:
            return self._receive(one, segment, microbatch)
        if one.kind in SENDS:
            gradient = one.kind == "send_gradient"
            self._wait(self.arrived.get((gradient, segment, microbatch), []))
            self._check_sent(one, gradient, segment, microbatch)
            return self.numbers[_key(one, self.stage)]
        if one.kind == "forward":
            self._forward(one, segment, microbatch)
        elif one.kind in ("backward", "backward_input"):
            self._backward(one, segment, microbatch)
        self.done.add((one.kind, segment, microbatch))
        return -1

    def _receive(self, one: Instruction, segment: int, microbatch: int) -> int:
        key = _key(one, self.stage)
        if key not in self.numbers:
            raise VerifyError(
                f"`{one}` on stage {self.stage} has no send on stage {one.peer}", "a send for each receive"
            )
        self.arrived.setdefault((key[0], segment, microbatch), []).append(self.numbers[key])
        return self.numbers[key]

    def _check_sent(self, one: Instruction, gradient: bool, segment: int, microbatch: int) -> None:
        if not gradient:
            self.sent[segment, microbatch] = self.sent.get((segment, microbatch), 0) + 1
            have = self.stage_of.get(segment) == self.stage and ("forward", segment, microbatch) in self.done
            if not have and (False, segment, microbatch) not in self.arrived:
                raise VerifyError(
                    f"`{one}` on stage {self.stage} has no value to send", "its forward or receive before"
                )
        elif (True, segment, microbatch) not in self.arrived and not any(
            self._returned(reader, microbatch) for reader in self.users.get(segment, ())
        ):
            raise VerifyError(f"`{one}` on stage {self.stage} has no gradient to send", "a reader's backward before")

    def _returned(self, segment: int, microbatch: int) -> bool:
        return ("backward", segment, microbatch) in self.done or ("backward_input", segment, microbatch) in self.done

    def _forward(self, one: Instruction, segment: int, microbatch: int) -> None:
        for maker in self.makers.get(segment, ()):
            if self.stage_of[maker] != self.stage:
                arrived = self.arrived.get((False, maker, microbatch))
                if not arrived:
                    raise VerifyError(
                        f"`{one}` reads segment {maker}'s value", f"`receive {maker} mb{microbatch}` first"
                    )
                self._wait(arrived)
            elif ("forward", maker, microbatch) not in self.done and ("pass", maker, microbatch) not in self.done:
                raise VerifyError(f"`{one}` reads segment {maker}'s value", f"`forward {maker} mb{microbatch}` first")

    def _backward(self, one: Instruction, segment: int, microbatch: int) -> None:
        arrived = self.arrived.get((True, segment, microbatch), [])
        if len(arrived) != self.sent.get((segment, microbatch), 0):
            sent = self.sent.get((segment, microbatch), 0)
            raise VerifyError(
                f"`{one}` has {len(arrived)} gradients of its value received",
                f"{sent}, one from each stage it was sent to",
            )
        self._wait(arrived)
        for reader in self.users.get(segment, ()):
            if self.stage_of[reader] == self.stage and not self._returned(reader, microbatch):
                raise VerifyError(f"`{one}` needs the gradient of segment {reader}", "the reader's backward first")

    def _wait(self, messages: list[int]) -> None:
        if messages:
            self.waits[self.index] = (*self.waits.get(self.index, ()), *messages)


def _check_receives(
    keys: tuple[Key, ...], own: tuple[tuple[int, ...], ...], lists: Sequence[Sequence[Instruction]]
) -> None:
    """Each message received once, and on each channel in the order in which it is sent."""
    last: dict[tuple[bool, int, int], int] = {}
    seen: set[int] = set()
    for stage, instructions in enumerate(lists):
        for one, message in zip(instructions, own[stage], strict=True):
            if one.kind not in RECEIVES:
                continue
            if message in seen:
                raise VerifyError(f"`{one}` stands twice on stage {stage}", "each value received once")
            seen.add(message)
            gradient, _, _, source, target = keys[message]
            if last.get((gradient, source, target), -1) > message:
                raise VerifyError(
                    f"`{one}` on stage {stage} is out of turn", f"the order in which stage {source} sends"
                )
            last[gradient, source, target] = message
    for message, (gradient, segment, microbatch, source, target) in enumerate(keys):
        if message not in seen:
            kind = "send_gradient" if gradient else "send"
            raise VerifyError(
                f"`{kind} {segment} mb{microbatch} to {target}` on stage {source}", f"a receive on stage {target}"
            )
