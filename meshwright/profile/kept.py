"""What a rule about saved values says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwright.capture.program import Op, Value


@dataclass(frozen=True, slots=True)
class Saved:
    """Indices of the operands and results that backward reads, and the bytes of what it reads besides."""

    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    auxiliary_bytes: int = 0


Rule = Callable[[Op, Sequence[Value]], Saved]
