"""Read the figures of a link: of a level, or of a host or group that has its own."""

from __future__ import annotations

from meshwright.cluster.cost import KINDS
from meshwright.cluster.toml.table import Table
from meshwright.cluster.tree import MOST_TAPER, Link
from meshwright.cluster.units import parse_count, parse_rate, parse_seconds

LINK_FIELDS = ("bandwidth", "latency", "links", "shared", "efficiency", "taper")
_MOST_EFFICIENCY = 10.0


def read_link(table: Table) -> Link:
    efficiency: tuple[tuple[str, float], ...] = ()
    if "efficiency" in table:
        entries = table.child("efficiency", KINDS)
        efficiency = tuple((kind, _efficiency(entries, kind)) for kind in entries.data)
    shared = table.data.get("shared", False)
    if not isinstance(shared, bool):
        raise table.where.error(table.field("shared"), f"is {shared!r}", "true or false")
    return Link(
        latency_s=table.figure("latency", parse_seconds),
        bandwidth=table.figure("bandwidth", parse_rate, positive=True),
        count=table.whole("links", 1),
        shared=shared,
        efficiency=efficiency,
        taper=_taper(table),
    )


def _efficiency(table: Table, kind: str) -> float:
    """What a collective reaches: over 1 where detection measured a rate low, but a percentage is a slip."""
    value = table.figure(kind, parse_count, positive=True)
    if value > _MOST_EFFICIENCY:
        raise table.where.error(table.field(kind), f"is {table.data[kind]!r}", "a fraction, such as 0.9")
    return value


def _taper(table: Table) -> float:
    value = table.figure("taper", parse_count, 0.0)
    if value > MOST_TAPER:
        raise table.where.error(table.field("taper"), f"is {table.data['taper']!r}", f"from 0 to {MOST_TAPER:g}")
    return value
