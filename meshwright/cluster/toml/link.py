"""Read the figures of a link: of a level, or of a host or group that has its own."""

from __future__ import annotations

from meshwright.cluster.collective_table import measured_links
from meshwright.cluster.cost import KINDS
from meshwright.cluster.toml.nearest import Nearest
from meshwright.cluster.toml.table import Plausible, Table
from meshwright.cluster.tree import MOST_TAPER, Link
from meshwright.cluster.units import parse_count, parse_rate, parse_seconds

LINK_FIELDS = ("bandwidth", "latency", "links", "shared", "efficiency", "taper", "measured", "jitter")
_MOST_EFFICIENCY = 10.0
_BANDWIDTH, _LATENCY = Plausible("100kB/s", "100TB/s", ("GB/s",)), Plausible("0s", "10s", ("us",))


def read_link(table: Table, nearest: Nearest, level: str, inner: bool) -> Link:
    """A link's figures; those that are not given are those of the nearest measured link."""
    bandwidth = table.figure("bandwidth", parse_rate, positive=True, plausible=_BANDWIDTH)
    for key in LINK_FIELDS:
        if key in table:
            nearest.given(f"{level}.{'latency_s' if key == 'latency' else key}")
    left = nearest.inner(level, table.data, bandwidth) if inner else nearest.outer(level, table.data)
    table = Table({**left, **table.data}, table.path, table.where)
    efficiency: tuple[tuple[str, float], ...] = ()
    if "efficiency" in table:
        entries = table.child("efficiency", KINDS)
        efficiency = tuple((kind, _efficiency(entries, kind)) for kind in entries.data)
    shared = table.data.get("shared", False)
    if not isinstance(shared, bool):
        raise table.where.error(table.field("shared"), f"is {shared!r}", "true or false")
    return Link(
        latency_s=table.figure("latency", parse_seconds, plausible=_LATENCY),
        bandwidth=bandwidth,
        count=table.whole("links", 1),
        shared=shared,
        efficiency=efficiency,
        taper=_taper(table),
        measured=_measured(table),
        jitter=table.figure("jitter", parse_count, 0.0),
    )


def _measured(table: Table) -> str:
    name = table.text("measured", "")
    if name and name not in measured_links():
        raise table.where.error(table.field("measured"), f"is {name!r}", f"one of {', '.join(measured_links())}")
    return name


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
