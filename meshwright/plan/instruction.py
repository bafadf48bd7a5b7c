"""Instructions: what one rank does, in order. One list, two interpreters: the runtime and the simulator.

Text form, one per line: `forward 3 mb0`, `gather 3`, `send 3 mb0 to 1`, `step`. A program round-trips through it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.errors import PlanError, VerifyError

PER_MICROBATCH = ("forward", "backward", "backward_input", "backward_weight")
PER_STEP = ("gather", "free", "reduce")
TRANSFERS = ("send", "receive")
KINDS = (*PER_MICROBATCH, *PER_STEP, *TRANSFERS, "step")
_LINE = re.compile(r"(?P<kind>\w+)(?: (?P<segment>\d+))?(?: mb(?P<microbatch>\d+))?(?: (?:to|from) (?P<peer>\d+))?")


@dataclass(frozen=True, slots=True)
class Instruction:
    """kind: one of KINDS. segment: which; microbatch: for compute and transfers; peer: the other stage's number.

    gather: bring a segment's parameters from storage to compute layout. free: drop gathered copies that are
    gathered again later. reduce: bring the gradients of parameters first used here to storage layout.
    step: where the user's optimizer runs.
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
            parts.append(f"{'to' if self.kind == 'send' else 'from'} {self.peer}")
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
            self.kind in PER_MICROBATCH or self.kind in TRANSFERS,
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
            if instruction.kind != "forward" and instruction.segment in reduced:
                raise VerifyError(f"`{instruction}` after `reduce {instruction.segment}`", "reduction last")
            done.add(key)
        elif instruction.kind == "reduce":
            reduced.add(instruction.segment)
    for kind, segment, microbatch in done:
        whole = ("backward", segment, microbatch) in done
        halves = all((half, segment, microbatch) in done for half in ("backward_input", "backward_weight"))
        if kind == "forward" and whole == halves:
            raise VerifyError(f"`forward {segment} mb{microbatch}`", "one backward of it, whole or in two halves")
