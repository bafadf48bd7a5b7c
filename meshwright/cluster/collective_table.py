"""Measured collectives inside a host: seconds by kind, group size and bytes, as lines fitted to nccl-tests.

A table holds, per kind and group size, at most four lines (seconds per byte, seconds): NCCL's protocols. The price is
the least of them, so it grows with the bytes and two messages never cost less than one of their size. Lines of a group
size that nobody measured lie between those of its neighbours; beyond the largest, latency grows as it did in the last
doubling and the bus bandwidth stays what it was.
"""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import Any

from meshwright.caches import CACHES
from meshwright.errors import ClusterError

LINKS = Path(__file__).parent / "links"
MEASURED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

Line = tuple[float, float]
"""Seconds per byte, and seconds whatever the bytes."""


@CACHES.memoized(maxsize=None)
def measured_links() -> tuple[str, ...]:
    """Names of the shipped tables."""
    return tuple(sorted(path.stem for path in LINKS.glob("*.json")))


@CACHES.memoized(maxsize=None)
def link_table(name: str) -> dict[str, Any]:
    """A shipped table: `bandwidth` (nominal, of one device in one direction), `lines`, `samples`, `source`."""
    path = LINKS / f"{name}.json"
    if not path.exists():
        raise ClusterError(f"measured link {name!r}", f"one of {', '.join(measured_links())}")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@CACHES.memoized(maxsize=1 << 12)
def measured_lines(name: str, kind: str, size: int) -> tuple[Line, ...]:
    """Lines of a collective among `size` devices at the table's own bandwidth.

    A broadcast is a gather whose every byte passes every device; a send is half of an exchange between two.
    """
    if kind == "send":
        return tuple((2 * s_per_byte, fixed_s) for s_per_byte, fixed_s in measured_lines(name, "all_to_all", 2))
    if kind == "broadcast":
        lines = measured_lines(name, "all_gather", size)
        return tuple((s_per_byte * size / (size - 1), fixed_s) for s_per_byte, fixed_s in lines)
    by_size = {int(n): lines for n, lines in link_table(name)["lines"][kind].items()}
    if size in by_size:
        return tuple((s_per_byte, fixed_s) for s_per_byte, fixed_s in by_size[size])
    sizes = sorted(by_size)
    larger = [n for n in sizes if n > size]
    low, high = (sizes[sizes.index(larger[0]) - 1], larger[0]) if larger else (sizes[-2], sizes[-1])
    share = log(size / low) / log(high / low)
    pairs = zip(by_size[low], by_size[high], strict=True)
    if larger:
        return tuple((_between(a[0], b[0], share), _between(a[1], b[1], share)) for a, b in pairs)
    wider = (size - 1) / size * high / (high - 1)
    return tuple((b[0] * wider, _between(a[1], max(a[1], b[1]), share)) for a, b in pairs)


def _between(low: float, high: float, share: float) -> float:
    return exp((1 - share) * log(low) + share * log(high))


@CACHES.memoized(maxsize=1 << 12)
def reached(name: str, kind: str, size: int) -> float:
    """Which part of the nominal bandwidth large messages of this kind reach (bus bandwidth over nominal)."""
    s_per_byte = min(line[0] for line in measured_lines(name, kind, size))
    moved = {"all_reduce": 2 * (size - 1) / size, "broadcast": 1.0, "send": 1.0}.get(kind, (size - 1) / size)
    return float(moved / s_per_byte / link_table(name)["bandwidth"])
