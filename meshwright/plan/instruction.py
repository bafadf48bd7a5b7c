"""Instructions: what one rank does, in order. One list, two interpreters: the runtime and the simulator.

Text form, one per line: `forward 3 mb0`, `gather 3`, `send 3 mb0 to 1`, `step`. A program round-trips through it.
A transfer is named at both ends by the segment that made the value: `send 3 mb0 to 1` on stage 0 and
`receive 3 mb0 from 0` on stage 1, then `send_gradient 3 mb0 to 0` and `receive_gradient 3 mb0 from 1` for its gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.errors import PlanError, VerifyError

BACKWARDS = ("backward", "backward_input", "backward_weight")
PER_MICROBATCH = ("forward", "recompute", *BACKWARDS)
NESTED = ("pass", "drop")
AWAY = ("offload", "release", "fetch")
PER_STEP = ("gather", "free", "reduce")
SENDS = ("send", "send_gradient")
RECEIVES = ("receive", "receive_gradient")
TRANSFERS = (*SENDS, *RECEIVES)
KINDS = (*PER_MICROBATCH, *NESTED, *AWAY, *PER_STEP, *TRANSFERS, "step")
_N = "[0-9]{1,9}"
_LINE = re.compile(
    rf"(?P<kind>[a-z_]+)(?: (?P<segment>{_N}))?(?: mb(?P<microbatch>{_N}))?(?: (?:to|from) (?P<peer>{_N}))?"
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """kind: one of KINDS. segment: which; microbatch: for compute and transfers; peer: the other stage's number.

    pass: a forward that keeps nothing, whose segment runs forward again; drop: let go of the values that a segment
    handed on. offload: begin to copy some of what a forward kept to the host; release: let go of it here; fetch: begin
    to bring it back. recompute: restore what a forward did not keep; it may stand before the gradient's arrival. send,
    receive: the values of the segment that the peer reads, begun here and waited for where they are used. gather: bring
    a segment's parameters from storage to compute layout. free: drop gathered copies that are gathered again later.
    reduce: bring the gradients of parameters first used here to storage layout. step: where the user's optimizer runs.
    """

    kind: str
    segment: int | None = None
    microbatch: int | None = None
    peer: int | None = None

    def __str__(self) -> str:
        parts = [self.kind]
        if self.segment is not None:
            parts.append(str(self.segment))
        if self.microbatch is not None:
            parts.append(f"mb{self.microbatch}")
        if self.peer is not None:
            parts.append(f"{'to' if self.kind in SENDS else 'from'} {self.peer}")
        return " ".join(parts)

    @classmethod
    def parse(cls, line: str) -> Instruction:
        match = _LINE.fullmatch(line.strip())
        if match is None or match["kind"] not in KINDS:
            raise PlanError(
                f"instruction {line.strip()!r}",
                f"a line such as `forward 3 mb0`; kinds: {', '.join(KINDS)}",
                "correct the line",
            )

        def number(name: str) -> int | None:
            return None if match[name] is None else int(match[name])

        found = cls(match["kind"], number("segment"), number("microbatch"), number("peer"))
        found.verify()
        return found

    def verify(self) -> None:
        wanted = (
            self.kind != "step",
            self.kind in (*PER_MICROBATCH, *NESTED, *AWAY, *TRANSFERS),
            self.kind in TRANSFERS,
        )
        given = (self.segment is not None, self.microbatch is not None, self.peer is not None)
        if given != wanted:
            raise VerifyError(f"instruction `{self}`", "a segment unless it is `step`, a micro-batch for compute")


def to_text(instructions: Iterable[Instruction]) -> str:
    return "".join(f"{instruction}\n" for instruction in instructions)


def from_text(text: str) -> tuple[Instruction, ...]:
    return tuple(Instruction.parse(line) for line in text.splitlines() if line.strip())


def verify(instructions: Iterable[Instruction]) -> None:
    """One rank's list: each backward after its forward, each once; every gradient reduced after all backwards."""
    done: set[tuple[str, int | None, int | None]] = set()
    reduced: set[int | None] = set()
    for instruction in instructions:
        instruction.verify()
        key = (instruction.kind, instruction.segment, instruction.microbatch)
        if instruction.kind in PER_MICROBATCH:
            if key in done:
                raise VerifyError(f"`{instruction}` stands twice", "each once")
            forward = ("forward", instruction.segment, instruction.microbatch)
            if instruction.kind != "forward" and forward not in done:
                raise VerifyError(f"`{instruction}` before its forward", "a forward of it first")
            if instruction.kind in BACKWARDS and instruction.segment in reduced:
                raise VerifyError(f"`{instruction}` after `reduce {instruction.segment}`", "reduction last")
            _check_place(instruction, done)
            done.add(key)
        elif instruction.kind == "pass" and ("forward", *key[1:]) in done:
            raise VerifyError(f"`{instruction}` after its forward", "passes before it")
        elif instruction.kind == "reduce":
            reduced.add(instruction.segment)
    for kind, segment, microbatch in done:
        whole = ("backward", segment, microbatch) in done
        halves = [(half, segment, microbatch) in done for half in BACKWARDS[1:]]
        if kind == "forward" and (any(halves) if whole else not all(halves)):
            raise VerifyError(f"`forward {segment} mb{microbatch}`", "one backward of it, whole or in two halves")


def _check_place(instruction: Instruction, done: set[tuple[str, int | None, int | None]]) -> None:
    """A recomputation stands before the backward that reads it, the input half of a backward before the other."""
    own = (instruction.segment, instruction.microbatch)
    if instruction.kind == "recompute" and any((kind, *own) in done for kind in BACKWARDS):
        raise VerifyError(f"`{instruction}` after its backward", "a recomputation before it")
    if instruction.kind == "backward_weight" and ("backward_input", *own) not in done:
        raise VerifyError(f"`{instruction}` before its input half", "`backward_input` first")
