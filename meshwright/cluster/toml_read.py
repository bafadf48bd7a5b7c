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
from collections.abc import Mapping
from pathlib import Path

from meshwright.cluster.cost import KINDS
from meshwright.cluster.device import Achievable, Device
from meshwright.cluster.profile_load import device_of
from meshwright.cluster.toml_lines import Where
from meshwright.cluster.toml_table import Table
from meshwright.cluster.topology import BACKENDS, MOST_TAPER, Cluster, Group, Link, Member
from meshwright.cluster.units import parse_bytes, parse_count, parse_rate, parse_seconds
from meshwright.errors import ClusterError

_LINK_FIELDS = ("bandwidth", "latency", "links", "shared", "efficiency", "taper")
_LEVEL_FIELDS = (*_LINK_FIELDS, "size", "group")
_GROUP_FIELDS = ("count", "size", "link", "uplink")
_DEVICE_FIELDS = (
    "kind",
    "memory",
    "reserve",
    "memory_bandwidth",
    "launch",
    "peaks",
    "achievable",
    "profile",
)
_DTYPES = ("float8", "bfloat16", "float16", "tf32", "float32", "float64")
_OP_KINDS = ("matmul", "attention", "convolution", "memory")
_MOST_EFFICIENCY = 10.0
_DEVICE_KINDS = ("cuda", "cpu")
_HOST_FIELDS = ("count", "device", "devices", "link", "uplink")
_TOP_FIELDS = ("name", "backend", "overhead", "device", "level", "host", "sources")


def read_cluster(text: str, file: str) -> Cluster:
    """The cluster that TOML `text` describes; `file` is its name in messages."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Where(text, file).error("", f"not TOML: {error}", "a TOML file", "see docs/cluster.md") from error
    top = Table(data, "", Where(text, file), _TOP_FIELDS)
    for table, example in (("device", "[device.NAME]"), ("level", "[level.host]"), ("host", "[[host]]")):
        if table not in top:
            raise top.where.error(table, "is missing", f"a table {example}", "docs/cluster.md has an example")
    devices = tuple(_device(name, top.child("device").child(name, _DEVICE_FIELDS)) for name in top.keys("device"))
    levels = [(name, top.child("level").child(name, _LEVEL_FIELDS)) for name in top.keys("level")]
    sources = top.child("sources").data if "sources" in top else {}
    cluster = Cluster(
        name=top.text("name", file),
        backend=top.one_of("backend", BACKENDS),
        devices=devices,
        root=_root(top, levels, {device.name for device in devices}),
        overhead_s=top.figure("overhead", parse_seconds, 0.0),
        sources=tuple((str(key), str(value)) for key, value in sources.items()),
    )
    cluster.verify()
    return cluster


def _device(name: str, table: Table) -> Device:
    """A device's figures; those that are not given are its profile's, where it names one."""
    known = _profiled(table)
    peaks = known.peaks if known and "peaks" not in table else _peaks(table)
    memory_bytes = int(table.figure("memory", parse_bytes, known.memory_bytes if known else None, positive=True))
    reserve_bytes = int(table.figure("reserve", parse_bytes, known.reserve_bytes if known else 0.0))
    if reserve_bytes >= memory_bytes:
        raise table.where.error(table.field("reserve"), f"is {table.data['reserve']!r}", "less than `memory`")
    return Device(
        name=name,
        kind=table.one_of("kind", _DEVICE_KINDS, known.kind if known else "cuda"),
        peaks=peaks,
        memory_bytes=memory_bytes,
        memory_bandwidth=table.figure(
            "memory_bandwidth", parse_rate, known.memory_bandwidth if known else None, positive=True
        ),
        launch_s=table.figure("launch", parse_seconds, known.launch_s if known else 0.0),
        reserve_bytes=reserve_bytes,
        achievable=known.achievable if known and "achievable" not in table else _achievable(table),
        profile=known.profile if known else "",
    )


def _profiled(table: Table) -> Device | None:
    """The device of the profile that is named: a shipped one, or a file (beside this one, if its path is relative)."""
    if "profile" not in table:
        return None
    name = table.text("profile", "")
    if name.endswith(".json"):
        name = str((Path(table.where.file).parent / name).absolute())
    try:
        return device_of(name)
    except ClusterError as error:
        raise table.where.error(table.field("profile"), f"is {name!r}: {error.given}", error.expected) from error


def _peaks(table: Table) -> tuple[tuple[str, float], ...]:
    peaks = table.child("peaks", _DTYPES)
    return tuple((dtype, peaks.figure(dtype, parse_count, positive=True)) for dtype in table.keys("peaks"))


def _achievable(table: Table) -> tuple[Achievable, ...]:
    if "achievable" not in table:
        return ()
    entries, found = table.child("achievable", _OP_KINDS), []
    for kind, value in entries.data.items():
        if isinstance(value, Mapping):
            entry = entries.child(kind, ("fraction", "half_work"))
            half = entry.figure("half_work", parse_count, 0.0)
            found.append(Achievable(kind, entry.figure("fraction", parse_count, positive=True), half))
        else:
            found.append(Achievable(kind, entries.figure(kind, parse_count, positive=True)))
        if found[-1].fraction > 1:
            raise table.where.error(entries.field(kind), f"is {found[-1].fraction}", "a fraction of at most 1")
    return tuple(found)


def _link(table: Table) -> Link:
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


def _root(top: Table, levels: list[tuple[str, Table]], device_names: set[str]) -> Group:
    name, link = levels[0][0], _link(levels[0][1])
    _refuse_sizes(levels[0][1])
    hosts = top.tables("host", _HOST_FIELDS)
    members = [_host(host, name, link, device_names) for host in hosts]
    if len(levels) == 1:
        _refuse_uplinks(hosts)
    for i, (level, table) in enumerate(levels[1:], 1):
        members = _grouped(members, level, table, outermost=i == len(levels) - 1)
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


def _own_links(table: Table, link: Link) -> tuple[Link, Link | None]:
    """The link inside a group (the level's unless it has its own) and the one from it outwards, if it has one."""
    inner = _link(table.child("link", _LINK_FIELDS)) if "link" in table else link
    uplink = _link(table.child("uplink", _LINK_FIELDS)) if "uplink" in table else None
    return inner, uplink


def _host(table: Table, level: str, link: Link, device_names: set[str]) -> Member:
    inner, uplink = _own_links(table, link)
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


def _grouped(members: list[Member], level: str, table: Table, outermost: bool) -> list[Member]:
    """Consecutive members in groups: as `[[level.NAME.group]]` says, or of `size` each; in one by default."""
    link, each = _link(table), [Member(m.of, 1, m.uplink) for m in members for _ in range(m.count)]
    groups, start = [], 0
    for n, inner, uplink in _groups_of(table, link, len(each), outermost):
        groups.append(Member(Group(level, inner, merge_equal(each[start : start + n])), 1, uplink))
        start += n
    return list(merge_equal(groups))


def _groups_of(table: Table, link: Link, total: int, outermost: bool) -> list[tuple[int, Link, Link | None]]:
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
        found += [(entry.whole("size"), *_own_links(entry, link))] * entry.whole("count", 1)
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


def merge_equal(members: list[Member]) -> tuple[Member, ...]:
    """Neighbours that are equal become one member with a count."""
    merged: list[Member] = []
    for member in members:
        if merged and (merged[-1].of, merged[-1].uplink) == (member.of, member.uplink):
            merged[-1] = Member(member.of, merged[-1].count + member.count, member.uplink)
        else:
            merged.append(member)
    return tuple(merged)
