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
from collections.abc import Callable, Mapping
from typing import Any

from meshwright.cluster.device import Achievable, Device
from meshwright.cluster.toml_lines import Where
from meshwright.cluster.topology import BACKENDS, Cluster, Group, Link, Member
from meshwright.cluster.units import parse_bytes, parse_count, parse_rate, parse_seconds

Convert = Callable[[object], float]

_LINK_FIELDS = ("bandwidth", "latency", "links", "shared", "efficiency", "size")
_DEVICE_FIELDS = (
    "kind",
    "memory",
    "reserve",
    "memory_bandwidth",
    "launch",
    "peaks",
    "achievable",
)
_HOST_FIELDS = ("count", "device", "devices", "link", "uplink")
_TOP_FIELDS = ("name", "backend", "overhead", "device", "level", "host", "sources")


def read_cluster(text: str, file: str) -> Cluster:
    """The cluster that TOML `text` describes; `file` is its name in messages."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Where(text, file).error("", f"not TOML: {error}", "a TOML file", "see docs/cluster.md") from error
    top = _Table(data, "", Where(text, file), _TOP_FIELDS)
    devices = tuple(_device(name, top.child("device").child(name, _DEVICE_FIELDS)) for name in top.keys("device"))
    levels = [(name, top.child("level").child(name, _LINK_FIELDS)) for name in top.keys("level")]
    cluster = Cluster(
        name=top.text("name", file),
        backend=top.one_of("backend", BACKENDS),
        devices=devices,
        root=_root(top, levels, {device.name for device in devices}),
        overhead_s=top.figure("overhead", parse_seconds, 0.0),
        sources=tuple((str(key), str(value)) for key, value in data.get("sources", {}).items()),
    )
    cluster.verify()
    return cluster


class _Table:
    """A table of the file, with typed access that raises with line and field."""

    def __init__(self, data: object, path: str, where: Where, known: tuple[str, ...] | None = None) -> None:
        if not isinstance(data, dict):
            raise where.error(path, f"is {data!r}", "a table")
        self.data: dict[str, Any] = data
        self.path, self.where = path, where
        for key in data if known is not None else ():
            if known is not None and key not in known:
                raise where.error(self.field(key), "is not a field", f"one of {', '.join(known)}")

    def field(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def need(self, key: str) -> Any:
        if key not in self.data:
            raise self.where.error(self.field(key), "is missing", "a value", f"add `{key} = ...`")
        return self.data[key]

    def child(self, key: str, known: tuple[str, ...] | None = None) -> _Table:
        return _Table(self.need(key), self.field(key), self.where, known)

    def keys(self, key: str) -> list[str]:
        names = list(self.child(key).data)
        if not names:
            raise self.where.error(self.field(key), "is empty", "at least one entry")
        return names

    def text(self, key: str, default: str) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str):
            raise self.where.error(self.field(key), f"is {value!r}", "text")
        return value

    def one_of(self, key: str, options: tuple[str, ...]) -> str:
        value = self.need(key)
        if value not in options:
            raise self.where.error(self.field(key), f"is {value!r}", f"one of {', '.join(options)}")
        return str(value)

    def figure(self, key: str, convert: Convert, default: float | None = None, *, positive: bool = False) -> float:
        value = self.need(key) if default is None else self.data.get(key, default)
        try:
            number = convert(value)
        except ValueError as error:
            raise self.where.error(self.field(key), f"is {value!r}", str(error)) from None
        if number < 0 or (positive and number == 0):
            raise self.where.error(self.field(key), f"is {value!r}", "a positive figure" if positive else "0 or more")
        return number

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.need(key) if default is None else self.data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.where.error(self.field(key), f"is {value!r}", "a whole number, 1 or more")
        return value


def _device(name: str, table: _Table) -> Device:
    peaks = table.child("peaks")
    return Device(
        name=name,
        kind=table.text("kind", "cuda"),
        peaks=tuple((dtype, peaks.figure(dtype, parse_count, positive=True)) for dtype in table.keys("peaks")),
        memory_bytes=int(table.figure("memory", parse_bytes, positive=True)),
        memory_bandwidth=table.figure("memory_bandwidth", parse_rate, positive=True),
        launch_s=table.figure("launch", parse_seconds, 0.0),
        reserve_bytes=int(table.figure("reserve", parse_bytes, 0.0)),
        achievable=_achievable(table),
    )


def _achievable(table: _Table) -> tuple[Achievable, ...]:
    if "achievable" not in table:
        return ()
    entries, found = table.child("achievable"), []
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


def _link(table: _Table) -> Link:
    efficiency: tuple[tuple[str, float], ...] = ()
    if "efficiency" in table:
        entries = table.child("efficiency")
        efficiency = tuple((kind, entries.figure(kind, parse_count, positive=True)) for kind in entries.data)
    shared = table.data.get("shared", False)
    if not isinstance(shared, bool):
        raise table.where.error(table.field("shared"), f"is {shared!r}", "true or false")
    return Link(
        latency_s=table.figure("latency", parse_seconds),
        bandwidth=table.figure("bandwidth", parse_rate, positive=True),
        count=table.whole("links", 1),
        shared=shared,
        efficiency=efficiency,
    )


def _root(top: _Table, levels: list[tuple[str, _Table]], device_names: set[str]) -> Group:
    entries = top.need("host")
    if not isinstance(entries, list) or not entries:
        raise top.where.error("host", "is not a list", "one or more [[host]] tables")
    name, link = levels[0][0], _link(levels[0][1])
    members: list[Member] = []
    for number, entry in enumerate(entries):
        members.append(_host(_Table(entry, f"host[{number}]", top.where, _HOST_FIELDS), name, link, device_names))
    for level, table in levels[1:]:
        members = _grouped(members, level, table)
    if len(members) == 1 and members[0].count == 1 and isinstance(members[0].of, Group):
        return members[0].of
    total = sum(member.count for member in members)
    raise top.where.error(
        f"level.{levels[-1][0]}", f"leaves {total} groups unjoined", "one outermost group", "add an outer [level.*]"
    )


def _host(table: _Table, level: str, link: Link, device_names: set[str]) -> Member:
    inner = _link(table.child("link", _LINK_FIELDS)) if "link" in table else link
    uplink = _link(table.child("uplink", _LINK_FIELDS)) if "uplink" in table else None
    return Member(Group(level, inner, _host_devices(table, device_names)), table.whole("count", 1), uplink)


def _host_devices(table: _Table, device_names: set[str]) -> tuple[Member, ...]:
    """`device = "a"`, `devices = 8`; or lists of equal length for a host that mixes types."""
    devices, counts = table.need("device"), table.need("devices")
    if not isinstance(devices, list):
        devices, counts = [devices], [counts]
    if not isinstance(counts, list) or len(counts) != len(devices):
        raise table.where.error(table.field("devices"), f"is {counts!r}", f"{len(devices)} numbers, one per device")
    for device, count in zip(devices, counts, strict=True):
        if device not in device_names:
            raise table.where.error(table.field("device"), f"is {device!r}", f"one of {sorted(device_names)}")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise table.where.error(table.field("devices"), f"is {count!r}", "a whole number, 1 or more")
    return tuple(Member(device, count) for device, count in zip(devices, counts, strict=True))


def _grouped(members: list[Member], level: str, table: _Table) -> list[Member]:
    """Consecutive members in groups of `size` (a number, or one per group); all of them by default."""
    link, each = _link(table), [Member(m.of, 1, m.uplink) for m in members for _ in range(m.count)]
    size = table.data.get("size", len(each))
    sizes = size if isinstance(size, list) else [size] * max(1, len(each) // max(1, size))
    if any(not isinstance(n, int) or n < 1 for n in sizes) or sum(sizes) != len(each):
        raise table.where.error(table.field("size"), f"is {size!r}", f"sizes that add up to {len(each)}")
    groups, start = [], 0
    for n in sizes:
        groups.append(Member(Group(level, link, merge_equal(each[start : start + n]))))
        start += n
    return list(merge_equal(groups))


def merge_equal(members: list[Member]) -> tuple[Member, ...]:
    """Neighbours that are equal become one member with a count."""
    merged: list[Member] = []
    for member in members:
        if merged and (merged[-1].of, merged[-1].uplink) == (member.of, member.uplink):
            merged[-1] = Member(member.of, merged[-1].count + member.count, member.uplink)
        else:
            merged.append(member)
    return tuple(merged)
