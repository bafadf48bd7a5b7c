"""Write a cluster as TOML: what `detect` measured, in the form a user can read and edit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby

from meshwright.cluster.device import Device
from meshwright.cluster.topology import Cluster
from meshwright.cluster.tree import Group, Link, Member, merge_equal
from meshwright.errors import ClusterError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_cluster(cluster: Cluster) -> str:
    """TOML that `read_cluster` reads back as an equal cluster."""
    lines = [f"name = {_text(cluster.name)}", f'backend = "{cluster.backend}"', f"overhead = {cluster.overhead_s!r}"]
    for device in cluster.devices:
        lines += ["", *_device_lines(device)]
    members = [Member(cluster.root)]  # of one level, each on its own, outermost level first
    tables: list[list[str]] = []
    while not isinstance(_group(members[0]).members[0].of, str):
        tables.append(_level_lines(members))
        members = [
            Member(child.of, 1, child.uplink)
            for m in members
            for child in _group(m).members
            for _ in range(child.count)
        ]
    inner = _group(members[0])
    tables.append(["", f"[level.{_key(inner.level)}]", *_link_fields(inner.link)])
    for table in reversed(tables):
        lines += table
    lines += _host_lines(members, inner.link)
    if cluster.sources:
        lines += ["", "[sources]", *(f"{_text(key)} = {_text(value)}" for key, value in cluster.sources)]
    return "\n".join(lines) + "\n"


def _group(member: Member) -> Group:
    assert isinstance(member.of, Group)
    return member.of


def _text(text: str) -> str:
    """As a TOML basic string, which is what JSON writes too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _device_lines(device: Device) -> Iterator[str]:
    yield f"[device.{_key(device.name)}]"
    yield f'kind = "{device.kind}"'
    yield f"memory = {device.memory_bytes}"
    yield f"reserve = {device.reserve_bytes}"
    yield f"memory_bandwidth = {device.memory_bandwidth!r}"
    yield f"launch = {device.launch_s!r}"
    yield f"peaks = {{ {', '.join(f'{dtype} = {rate!r}' for dtype, rate in device.peaks)} }}"
    entries = (
        f"{_key(e.kind)} = {{ fraction = {e.fraction!r}, half_work = {e.half_work!r} }}" for e in device.achievable
    )
    yield f"achievable = {{ {', '.join(entries)} }}"
    yield f"profile = {_text(device.profile)}"


def _link_fields(link: Link) -> list[str]:
    fields = [f"bandwidth = {link.bandwidth!r}", f"latency = {link.latency_s!r}"]
    if link.count != 1:
        fields.append(f"links = {link.count}")
    if link.shared:
        fields.append("shared = true")
    fields.append(f"efficiency = {{ {', '.join(f'{k} = {v!r}' for k, v in link.efficiency)} }}")
    fields.append(f"taper = {link.taper!r}")  # even where there is none: what is left out is taken from known links
    fields.append(f"jitter = {link.jitter!r}")
    return [*fields, f"measured = {_text(link.measured)}"]


def _level_lines(members: list[Member]) -> list[str]:
    """A level's table; groups that differ in their links are listed one by one, others by their sizes."""
    groups = [_group(member) for member in members]
    name, default = _key(groups[0].level), groups[0].link
    lines = ["", f"[level.{name}]", *_link_fields(default)]
    sizes = [_size(member) for member in members]
    if all(group.link == default for group in groups) and not any(member.uplink for member in members):
        return [*lines, f"size = {sizes[0] if len(set(sizes)) == 1 else sizes}"]
    for size, link, uplink, count in _runs(members):
        lines += ["", f"[[level.{name}.group]]", f"count = {count}", f"size = {size}"]
        lines += _own_links(link, uplink, default)
    return lines


def _size(member: Member) -> int:
    return sum(child.count for child in _group(member).members)


def _runs(members: list[Member]) -> Iterator[tuple[int, Link, Link | None, int]]:
    """Neighbours of the same size and links, with how many they are."""
    for (size, link, uplink), run in groupby(members, key=lambda m: (_size(m), _group(m).link, m.uplink)):
        yield size, link, uplink, len(list(run))


def _own_links(link: Link, uplink: Link | None, default: Link) -> list[str]:
    lines = [f"link = {{ {', '.join(_link_fields(link))} }}"] if link != default else []
    return lines + ([f"uplink = {{ {', '.join(_link_fields(uplink))} }}"] if uplink else [])


def _host_lines(members: list[Member], default: Link) -> Iterator[str]:
    for member in merge_equal(members):
        host = _group(member)
        if any(device.uplink for device in host.members):
            raise ClusterError("a device has a link of its own", "links of hosts and levels only")
        yield from ("", "[[host]]", f"count = {member.count}")
        yield f"device = {_one_or_list([_text(str(device.of)) for device in host.members])}"
        yield f"devices = {_one_or_list([str(device.count) for device in host.members])}"
        yield from _own_links(host.link, member.uplink, default)


def _one_or_list(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"[{', '.join(items)}]"
