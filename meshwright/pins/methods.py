"""The names of the ways to save activation memory, as `recompute=NAME` has them (`planner.memory.methods`)."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.errors import PlanError, did_you_mean
from meshwright.pins.parts import pin_parts

WORD = "recompute"

FIXED = ("keep", "full", "selective")
"""What they keep does not depend on the limit."""

ORDERED = ("sqrt", "rotor", "nested")
METHODS = ("auto", "flat", *ORDERED, *FIXED)


def check_method(given: str, name: str) -> None:
    """Raises PlanError unless it is one; given: as the user wrote it."""
    if name not in METHODS:
        raise PlanError(given, f"one of {', '.join(METHODS)}", did_you_mean(name, METHODS, "choose one of them"))


ANYWHERE = ("auto", "keep")
"""Methods that leave what is searched as it is."""

IN_STAGES = (*ANYWHERE, "flat", "full", "selective")
"""Methods that pipelines have too: each segment runs forward once. The others run segments in a nested order."""


def pinned_method(texts: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """(the method that pins ask for, `auto` if none does; the other pins). Those were checked: `pins.check`."""
    found = [value for key, value in map(pin_parts, texts) if key == WORD]
    return found[0] if found else "auto", tuple(text for text in texts if pin_parts(text)[0] != WORD)


def no_stages(method: str) -> PlanError:
    """Where a pipeline was pinned too."""
    others = f"{', '.join(IN_STAGES[1:-1])} or {IN_STAGES[-1]}"
    expected = f"one stage for a nested order, or {WORD}={others} in each"
    return PlanError(f"pin {WORD}={method} with stages", expected, "drop one of the pins")
