"""Read a cluster from TOML. Every fault names its line and field.

    name = "two kinds"              [level.host]   # innermost first       [[host]]
    backend = "nccl"                bandwidth = "450GB/s"                  count = 2
                                    latency = "3us"                        devices = 8
    [device.fast]                                                          device = "fast"
    memory = "80GiB"                [level.pod]
    memory_bandwidth = "3.35TB/s"   bandwidth = "50GB/s"
    peaks = { bfloat16 = "989T" }   links = 8
                                    latency = "10us"

docs/cluster.md has every field.
"""

from __future__ import annotations

import tomllib

from meshwright.cluster.collective_table import measured_links
from meshwright.cluster.cost import KINDS
from meshwright.cluster.mesh import BACKENDS
from meshwright.cluster.toml.device import DEVICE_FIELDS, read_device
from meshwright.cluster.toml.lines import Where
from meshwright.cluster.toml.nearest import Nearest
from meshwright.cluster.toml.table import Plausible, Table
from meshwright.cluster.topology import Cluster
from meshwright.cluster.tree import MOST_TAPER, Group, Link, Member, merge_equal
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


_LEVEL_FIELDS = (*LINK_FIELDS, "size", "group")
_GROUP_FIELDS = ("count", "size", "link", "uplink")
_HOST_FIELDS = ("count", "device", "devices", "link", "uplink")
_TOP_FIELDS = ("name", "backend", "overhead", "device", "level", "host", "sources")


def read_cluster(text: str, file: str) -> Cluster:
    """The cluster that TOML `text` describes; `file` is its name in messages."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of TOML, or of numbers with thousands of digits
        raise Where(text, file).error("", f"not TOML: {error}", "a TOML file", "see docs/cluster.md") from error
    top = Table(data, "", Where(text, file), _TOP_FIELDS)
    for table, example in (("device", "[device.NAME]"), ("level", "[level.host]"), ("host", "[[host]]")):
        if table not in top:
            raise top.where.error(table, "is missing", f"a table {example}", "docs/cluster.md has an example")
    names = top.keys("device")
    backend = top.one_of("backend", BACKENDS)
    nearest = Nearest(backend, file)
    devices = tuple(read_device(name, top.child("device").child(name, DEVICE_FIELDS), nearest) for name in names)
    levels = [(name, top.child("level").child(name, _LEVEL_FIELDS)) for name in top.keys("level")]
    sources = top.child("sources").data if "sources" in top else {}
    root = _root(top, levels, {device.name for device in devices}, nearest)
    if "overhead" in top:
        nearest.given("overhead_s")
    overhead_s = top.figure("overhead", parse_seconds) if "overhead" in top else nearest.overhead_s()
    given = {} if sources else nearest.own  # a file with sources has said it
    noted = {**given, **nearest.notes, **{str(key): str(value) for key, value in sources.items()}}
    cluster = Cluster(
        name=top.text("name", file),
        backend=backend,
        devices=devices,
        root=root,
        overhead_s=overhead_s,
        sources=tuple(noted.items()),
    )
    cluster.verify()
    return cluster


def _root(top: Table, levels: list[tuple[str, Table]], device_names: set[str], nearest: Nearest) -> Group:
    name, link = levels[0][0], read_link(levels[0][1], nearest, levels[0][0], inner=True)
    _refuse_sizes(levels[0][1])
    hosts = top.tables("host", _HOST_FIELDS)
    members = [_host(host, name, link, device_names, nearest) for host in hosts]
    if len(levels) == 1:
        _refuse_uplinks(hosts)
    for i, (level, table) in enumerate(levels[1:], 1):
        members = _grouped(members, level, table, nearest, outermost=i == len(levels) - 1)
    if len(members) == 1 and members[0].count == 1 and isinstance(members[0].of, Group):
        return members[0].of
    total = sum(member.count for member in members)
    raise top.where.error(
        f"level.{levels[-1][0]}", f"leaves {total} groups unjoined", "one outermost group", "add an outer [level.*]"
    )


def _refuse_sizes(innermost: Table) -> None:
    for field in ("size", "group"):
        if field in innermost:
            raise innermost.where.error(
                innermost.field(field), "is not for the innermost level", "[[host]] tables say what hosts there are"
            )


def _refuse_uplinks(tables: list[Table]) -> None:
    for table in tables:
        if "uplink" in table:
            raise table.where.error(
                table.field("uplink"), "leads nowhere", "a level above", "add an outer [level.*] or drop the uplink"
            )


def _own_links(table: Table, link: Link, nearest: Nearest, host: bool) -> tuple[Link, Link | None]:
    """The link inside a group (the level's unless it has its own) and the one from it outwards, if it has one."""
    links = [table.child(name, LINK_FIELDS) if name in table else None for name in ("link", "uplink")]
    inner, uplink = (
        read_link(own, nearest, own.path, inner=host and i == 0) if own else None for i, own in enumerate(links)
    )
    return inner or link, uplink


def _host(table: Table, level: str, link: Link, device_names: set[str], nearest: Nearest) -> Member:
    inner, uplink = _own_links(table, link, nearest, host=True)
    return Member(Group(level, inner, _host_devices(table, device_names)), table.whole("count", 1), uplink)


def _host_devices(table: Table, device_names: set[str]) -> tuple[Member, ...]:
    """`device = "a"`, `devices = 8`; or lists of equal length for a host that mixes types."""
    devices, counts = table.need("device"), table.need("devices")
    if devices == []:
        raise table.where.error(table.field("device"), "is []", f"one of {sorted(device_names)}, or some of them")
    if not isinstance(devices, list):
        devices, counts = [devices], [counts]
    if not isinstance(counts, list) or len(counts) != len(devices):
        raise table.where.error(table.field("devices"), f"is {counts!r}", f"{len(devices)} numbers, one per device")
    for device in devices:
        if not isinstance(device, str) or device not in device_names:
            raise table.where.error(table.field("device"), f"is {device!r}", f"one of {sorted(device_names)}")
    return tuple(Member(d, table.checked_whole("devices", n)) for d, n in zip(devices, counts, strict=True))


def _grouped(members: list[Member], level: str, table: Table, nearest: Nearest, outermost: bool) -> list[Member]:
    """Consecutive members in groups: as `[[level.NAME.group]]` says, or of `size` each; in one by default."""
    link, each = (
        read_link(table, nearest, level, inner=False),
        [Member(m.of, 1, m.uplink) for m in members for _ in range(m.count)],
    )
    groups, start = [], 0
    for n, inner, uplink in _groups_of(table, link, len(each), nearest, outermost):
        groups.append(Member(Group(level, inner, merge_equal(each[start : start + n])), 1, uplink))
        start += n
    return list(merge_equal(groups))


def _groups_of(
    table: Table, link: Link, total: int, nearest: Nearest, outermost: bool
) -> list[tuple[int, Link, Link | None]]:
    """Of every group of a level: how many members, the link inside, the link outwards."""
    if "group" not in table:
        return [(n, link, None) for n in _sizes(table, total)]
    if "size" in table:
        raise table.where.error(table.field("size"), "is given twice", "`size` or [[group]] tables, not both")
    entries = table.tables("group", _GROUP_FIELDS)
    if outermost:
        _refuse_uplinks(entries)
    found = []
    for entry in entries:
        found += [(entry.whole("size"), *_own_links(entry, link, nearest, host=False))] * entry.whole("count", 1)
    if sum(n for n, _, _ in found) != total:
        raise table.where.error(
            table.field("group"), f"has groups of {[n for n, _, _ in found]}", f"sizes that add up to {total}"
        )
    return found


def _sizes(table: Table, total: int) -> list[int]:
    size = table.data.get("size", total)
    if isinstance(size, list):
        sizes = [table.checked_whole("size", n) for n in size]
    else:
        sizes = [table.checked_whole("size", size)] * (total // size)
    if sum(sizes) != total:
        raise table.where.error(table.field("size"), f"is {size!r}", f"sizes that add up to {total}")
    return sizes
