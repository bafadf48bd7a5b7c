"""Bytes, seconds and runs of segments as people write and read them."""

from __future__ import annotations

import math
import re

from meshwright.errors import PlanError

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse_bytes(given: str | float | None) -> int | None:
    """`20GiB`, `512MB` or a number of bytes."""
    if given is None:
        return None
    found = _bytes(given)
    if not (math.isfinite(found) and found > 0):
        raise PlanError(f"memory {given!r}", f"a positive size such as 20GiB; units: {', '.join(UNITS)}", "correct it")
    return int(found)


def _bytes(given: object) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return given
    match = (
        re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([KMG]i?B|B)?\s*", given)
        if isinstance(given, str)
        else None
    )
    return float(match[1]) * UNITS[match[2] or "B"] if match else 0.0


def show_seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return "0 s" if value == 0 else f"{value:.2g} s"


def show_bytes(value: int) -> str:
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= scale:
            return f"{value / scale:{'.3g' if value < 999.5 * scale else '.0f'}} {unit}"
    return f"{value} B"


def show_gap(gap: float) -> str:
    """Of a plan that nobody searched no bound is known."""
    return f"gap {gap:.2%}" if gap < 1 else "no bound known"


def show_spans(*spans: tuple[int, int]) -> str:
    """Of the segments [first, end), in one run or several: `segment 0`, `segments 0, 4 to 7`."""
    texts = [str(first) if end - first == 1 else f"{first} to {end - 1}" for first, end in spans]
    return f"segment{'' if sum(end - first for first, end in spans) == 1 else 's'} {', '.join(texts)}"
