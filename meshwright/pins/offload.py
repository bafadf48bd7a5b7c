"""The pin `offload`: what of the parameters lives in the host's memory, and how much of it.

offload=none            nothing; what holds without a pin
offload=auto            what is fastest where memory binds
offload=optimizer       all optimizer state
offload=optimizer:0.5   about half of it
offload=weights         stored weights, their gradients and optimizer state
offload=weights:0.25    about a quarter of them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.errors import PlanError
from meshwright.pins.parts import pin_parts

WORD = "offload"
SHOWN = "offload=none, auto, optimizer, weights or optimizer:0.5"
KINDS = {"none": "", "auto": "auto", "optimizer": "optimizer", "weights": "weight"}


@dataclass(frozen=True, slots=True)
class Offload:
    """kind: as `ParameterPlan.offload` has it, or `auto`. fraction: of the bytes of all parameters."""

    kind: str
    fraction: float = 1.0

    @property
    def auto(self) -> bool:
        """Whether the planner may choose."""
        return self.kind == "auto"


def read_offload(value: str) -> Offload | None:
    """What the pin says; None where it says nothing that there is."""
    name, mark, part = value.partition(":")
    if name not in KINDS or (mark and name in ("none", "auto")):
        return None
    try:
        fraction = float(part) if mark else 1.0
    except ValueError:
        return None
    return Offload(KINDS[name], fraction) if 0 < fraction <= 1 else None


def pinned_offload(texts: Sequence[str]) -> tuple[Offload, tuple[str, ...]]:
    """(what pins ask for; the other pins)."""
    values = [value for key, value in map(pin_parts, texts) if key == WORD]
    found = read_offload(values[0]) if values else Offload("")
    if found is None:
        raise PlanError(f"pin {WORD}={values[0]}", SHOWN, "correct the pin")
    return found, tuple(text for text in texts if pin_parts(text)[0] != WORD)
