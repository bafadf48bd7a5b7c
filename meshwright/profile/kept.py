"""What a rule about saved values says, and how it reads an op's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.capture.program import Op, Value


@dataclass(frozen=True, slots=True)
class Saved:
    """Indices of the operands and results that backward reads, and the bytes of what it reads besides."""

    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    auxiliary_bytes: int = 0


Rule = Callable[[Op, Sequence[Value]], Saved]


def literal(op: Op, position: int, name: str, default: Any) -> Any:
    """An argument that is a plain value, given by position or by name."""
    return op.args[position] if position < len(op.args) else dict(op.kwargs).get(name, default)
