"""Numbers and bytes as people write them. Imports nothing that takes time: what is wrong is refused at once."""

from __future__ import annotations

import math
import re

from meshwright.errors import PlanError

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_BY_LOWER = {unit.lower(): size for unit, size in UNITS.items()}
"""Letters of either case: bits are not meant."""
FEWEST = 1024
"""A number of bytes below this is a number of something else."""
_MOST_DIGITS = 9


def is_whole(text: str) -> bool:
    """Whether a text is a whole number from 1, in plain digits, that a machine could mean."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0


def parse_bytes(given: str | float | None) -> int | None:
    """`20GiB`, `512MB`, or a number of bytes; a text without a unit is refused."""
    if given is None:
        return None
    if bare := _bare(given):
        small = bare < FEWEST
        probably = f"{bare:g}GiB" if small else f"{bare:.0f}B"
        raise PlanError(
            f"memory {given!r} without a unit",
            f"a size with its unit: {', '.join(UNITS)}",
            f"write {probably} if you mean {'gibibytes' if small else 'bytes'}",
        )
    found = _bytes(given)
    if not (math.isfinite(found) and found > 0):
        raise PlanError(f"memory {given!r}", f"a positive size such as 20GiB; units: {', '.join(UNITS)}", "correct it")
    return int(found)


def _bare(given: object) -> float | None:
    """The number of a text without a unit, or one of so few bytes that gibibytes were meant."""
    if isinstance(given, str):
        match = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*", given)
        return float(match[1]) if match else None  # not all that is white space here may stand around a float
    few = isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < FEWEST
    return float(given) if few else None  # type: ignore[arg-type]


def _bytes(given: object) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return given
    match = (
        re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([kmg]i?b|b)\s*", given, re.ASCII | re.IGNORECASE)
        if isinstance(given, str)
        else None
    )
    return float(match[1]) * _BY_LOWER[match[2].lower()] if match else 0.0
