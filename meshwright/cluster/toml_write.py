"""Write a cluster as TOML: what `detect` measured, in the form a user can read and edit."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.cluster.device import Device
from meshwright.cluster.toml_read import merge_equal
from meshwright.cluster.topology import Cluster, Group, Link, Member
from meshwright.errors import ClusterError


def write_cluster(cluster: Cluster) -> str:
    """TOML that `read_cluster` reads back as an equal cluster."""
    lines = [f'name = "{cluster.name}"', f'backend = "{cluster.backend}"', f"overhead = {cluster.overhead_s!r}"]
    for device in cluster.devices:
        lines += ["", *_device_lines(device)]
    groups: list[Group] = [cluster.root]
    tables: list[list[str]] = []
    while not isinstance(groups[0].members[0].of, str):
        tables.append(_level_lines(groups))
        groups = [child for group in groups for child, _ in group.children() if isinstance(child, Group)]
    inner = groups[0]
    tables.append(["", f"[level.{inner.level}]", *_link_fields(inner.link)])
    for table in reversed(tables):
        lines += table
    lines += _host_lines(cluster.root, inner.link)
    if cluster.sources:
        lines += ["", "[sources]", *(f'"{key}" = "{_escaped(value)}"' for key, value in cluster.sources)]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _device_lines(device: Device) -> Iterator[str]:
    yield f'[device."{device.name}"]'
    yield f'kind = "{device.kind}"'
    yield f"memory = {device.memory_bytes}"
    yield f"reserve = {device.reserve_bytes}"
    yield f"memory_bandwidth = {device.memory_bandwidth!r}"
    yield f"launch = {device.launch_s!r}"
    yield f"peaks = {{ {', '.join(f'{dtype} = {rate!r}' for dtype, rate in device.peaks)} }}"
    if device.achievable:
        entries = (
            f"{e.kind} = {{ fraction = {e.fraction!r}, half_work = {e.half_work!r} }}" for e in device.achievable
        )
        yield f"achievable = {{ {', '.join(entries)} }}"


def _link_fields(link: Link) -> list[str]:
    fields = [f"bandwidth = {link.bandwidth!r}", f"latency = {link.latency_s!r}"]
    if link.count != 1:
        fields.append(f"links = {link.count}")
    if link.shared:
        fields.append("shared = true")
    if link.efficiency:
        fields.append(f"efficiency = {{ {', '.join(f'{k} = {v!r}' for k, v in link.efficiency)} }}")
    return fields


def _level_lines(groups: list[Group]) -> list[str]:
    if len({group.link for group in groups}) > 1:
        raise ClusterError(f"level {groups[0].level} has groups with different links", "one link per level")
    sizes = [sum(member.count for member in group.members) for group in groups]
    size = str(sizes[0]) if len(set(sizes)) == 1 else str(sizes)
    return ["", f"[level.{groups[0].level}]", *_link_fields(groups[0].link), f"size = {size}"]


def _host_lines(root: Group, default: Link) -> Iterator[str]:
    for member in merge_equal(list(_hosts(root, Member(root)))):
        host = member.of
        assert isinstance(host, Group)
        if any(device.uplink for device in host.members):
            raise ClusterError("a device has a link of its own", "links of hosts and levels only")
        names = [f'"{device.of}"' for device in host.members]
        counts = [str(device.count) for device in host.members]
        yield from ("", "[[host]]", f"count = {member.count}")
        yield f"device = {_one_or_list(names)}"
        yield f"devices = {_one_or_list(counts)}"
        if host.link != default:
            yield f"link = {{ {', '.join(_link_fields(host.link))} }}"
        if member.uplink:
            yield f"uplink = {{ {', '.join(_link_fields(member.uplink))} }}"


def _hosts(group: Group, around: Member) -> Iterator[Member]:
    """Host members in order; those of repeated groups are written out, since the file groups them by size."""
    if isinstance(group.members[0].of, str):
        yield around
        return
    for member in group.members:
        assert isinstance(member.of, Group)
        if isinstance(member.of.members[0].of, str):
            yield member
        else:
            if member.uplink:
                raise ClusterError(f"a {member.of.level} has an uplink of its own", "uplinks of hosts only")
            for _ in range(member.count):
                yield from _hosts(member.of, member)


def _one_or_list(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"[{', '.join(items)}]"
