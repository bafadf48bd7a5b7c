"""Bytes, seconds and runs of layers as people write and read them."""

from __future__ import annotations

from math import ceil

from meshwright.sizes import UNITS, parse_bytes

__all__ = [
    "UNITS",
    "parse_bytes",
    "show_bytes",
    "show_enough",
    "show_gap",
    "show_limit",
    "show_part",
    "show_seconds",
    "show_spans",
]


def show_seconds(value: float) -> str:
    if value >= 999.5:
        return f"{value:,.0f} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return "0 s" if value == 0 else f"{value:.2g} s"


def show_bytes(value: int) -> str:
    for scale, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= scale:
            return f"{value / scale:{'.3g' if value < 999.5 * scale else '.0f'}} {unit}"
    return f"{value} B"


def show_enough(value: int) -> str:
    """Rounded up, as `parse_bytes` reads it: given as a limit, it is enough."""
    for unit in ("GiB", "MiB", "KiB"):
        if value >= UNITS[unit]:
            return f"{ceil(100 * value / UNITS[unit]) / 100:.2f}{unit}"
    return f"{value}B"


def show_limit(value: int) -> str:
    """Of a limit that was given in decimal units, these too: `18.6 GiB (20 GB)`."""
    decimal = value % 10**8 == 0 and value % (1 << 20)
    return f"{show_bytes(value)} ({value / 1e9:g} GB)" if decimal else show_bytes(value)


def show_part(part: float) -> str:
    """In per cent, as it was given: `3%`, `99.99999%`."""
    return f"{100 * part:.10g}%"


def show_gap(gap: float) -> str:
    """Of a plan that nobody searched no bound is known: its gap is 1."""
    return f"optimality gap {gap:.1%}" if gap < 1 else "no bound known"


def show_spans(*spans: tuple[int, int]) -> str:
    """Of the layers [first, end), in one run or several: `layer 0`, `layers 0, 4 to 7`."""
    texts = [str(first) if end - first == 1 else f"{first} to {end - 1}" for first, end in spans]
    return f"layer{'' if sum(end - first for first, end in spans) == 1 else 's'} {', '.join(texts)}"
