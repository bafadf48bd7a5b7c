"""Figures as people write them: `450GB/s`, `200Mbit/s`, `80GiB`, `5us`, `989T`."""

from __future__ import annotations

import re

_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NUMBER = r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*"
_BYTES = re.compile(_NUMBER + r"(Ki|Mi|Gi|Ti|[kKMGTP]?)B")
_RATE = re.compile(_NUMBER + r"(Ki|Mi|Gi|Ti|[kKMGTP]?)(B|bit|b)/s")
_TIME = re.compile(_NUMBER + r"(s|ms|us|ns)")
_COUNT = re.compile(_NUMBER + r"([kKMGTP]?)(?:FLOP/s|FLOPS|FLOP)?")


def parse_bytes(value: object) -> float:
    """Bytes: a number, or text with B, kB, MiB, GB, ..."""
    match = _match(_BYTES, value, "a size such as 80GiB")
    return match if isinstance(match, float) else float(match[1]) * _prefix(match[2])


def parse_rate(value: object) -> float:
    """Bytes per second: a number, or text in B/s or bit/s."""
    match = _match(_RATE, value, "a rate such as 450GB/s or 200Mbit/s")
    if isinstance(match, float):
        return match
    return float(match[1]) * _prefix(match[2]) / (1 if match[3] == "B" else 8)


def parse_seconds(value: object) -> float:
    """Seconds: a number, or text with s, ms, us, ns."""
    match = _match(_TIME, value, "a time such as 5us")
    return match if isinstance(match, float) else float(match[1]) * _SECONDS[match[2]]


def parse_count(value: object) -> float:
    """A plain count (FLOP, FLOP/s): a number, or text with a decimal prefix such as 989T."""
    match = _match(_COUNT, value, "a number such as 989T")
    return match if isinstance(match, float) else float(match[1]) * _SCALE[match[2]]


def _prefix(text: str) -> float:
    return _BINARY[text] if text in _BINARY else _SCALE[text]


def _match(pattern: re.Pattern[str], value: object, expected: str) -> re.Match[str] | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = pattern.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(expected)
    return match


def format_bytes(n_bytes: float) -> str:
    for prefix, scale in (("Ti", 2.0**40), ("Gi", 2.0**30), ("Mi", 2.0**20), ("Ki", 2.0**10)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.4g} {prefix}B"
    return f"{n_bytes:.4g} B"


def format_rate(rate: float) -> str:
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= scale:
            return f"{rate / scale:.4g} {prefix}B/s"
    return f"{rate:.4g} B/s"
