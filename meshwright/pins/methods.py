"""The names of the ways to save activation memory, as `recompute=NAME` has them (`solve.memory.methods`)."""

from __future__ import annotations

from meshwright.errors import PlanError, did_you_mean

FIXED = ("keep", "full", "selective")
"""What they keep does not depend on the limit."""

ORDERED = ("sqrt", "rotor", "nested")
METHODS = ("auto", "flat", *ORDERED, *FIXED)


def check_method(given: str, name: str) -> None:
    """Raises PlanError unless it is one; given: as the user wrote it."""
    if name not in METHODS:
        raise PlanError(given, f"one of {', '.join(METHODS)}", did_you_mean(name, METHODS, "choose one of them"))
