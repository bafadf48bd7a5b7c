"""Cluster: devices in nested groups (host, rack, pod), each group with the links that join its members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

from meshwright.cluster.device import Device
from meshwright.errors import ClusterError, counted

if TYPE_CHECKING:
    from meshwright.cluster.mesh import Mesh

BACKENDS = ("nccl", "gloo")
MOST_TAPER = 2.0


@dataclass(frozen=True, slots=True)
class Link:
    """How one member reaches the other members of its group.

    `bandwidth` is bytes per second of one link in one direction; `count` links work in parallel. With `shared`
    the members do not have links of their own: all of them together have `count * bandwidth`. `efficiency`
    says, per collective, what fraction of the bandwidth it reaches. `taper` says how a large network falls short:
    among n members, each gets its bandwidth divided by (n / 2) ** taper.
    """

    latency_s: float
    bandwidth: float
    count: int = 1
    shared: bool = False
    efficiency: tuple[tuple[str, float], ...] = ()
    taper: float = 0.0

    @property
    def total_bandwidth(self) -> float:
        return self.bandwidth * self.count

    def kept_among(self, members: int) -> float:
        """The part of its bandwidth that a member keeps when so many members communicate."""
        return float((members / 2) ** -self.taper) if members > 2 else 1.0

    def verify(self, where: str) -> None:
        figures = {
            "latency_s": (self.latency_s, 0 <= self.latency_s < inf, "0 or more seconds"),
            "bandwidth": (self.bandwidth, 0 < self.bandwidth < inf, "more than 0 bytes per second"),
            "count": (self.count, self.count >= 1, "1 or more links"),
            "taper": (self.taper, 0 <= self.taper <= MOST_TAPER, f"from 0 to {MOST_TAPER:g}"),
        }
        for name, (value, fine, expected) in figures.items():
            if not fine:
                raise ClusterError(f"{where}: {name} is {value}", expected)
        for kind, fraction in self.efficiency:
            if not fraction > 0:
                raise ClusterError(f"{where}: efficiency of {kind} is {fraction}", "a positive fraction")


@dataclass(frozen=True, slots=True)
class Member:
    """`count` equal members of a group: devices (by name) or groups. `uplink` replaces the group's own link."""

    of: str | Group
    count: int = 1
    uplink: Link | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One instance of a level, for example a host: its members and the link each has to the others."""

    level: str
    link: Link
    members: tuple[Member, ...]

    @property
    def device_count(self) -> int:
        return sum(m.count * (1 if isinstance(m.of, str) else m.of.device_count) for m in self.members)

    def children(self) -> Iterator[tuple[str | Group, Link]]:
        """Every member on its own, with the link it has."""
        for member in self.members:
            for _ in range(member.count):
                yield member.of, member.uplink or self.link

    def levels(self) -> tuple[str, ...]:
        """Level names below and including this one, innermost first; every branch has the same (`verify`)."""
        below = next((m.of.levels() for m in self.members if isinstance(m.of, Group)), ())
        return (*below, self.level)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A tree of groups over device types.

    `overhead_s` is what starting a collective costs with this backend; `sources` says where figures come from.
    """

    name: str
    backend: str
    devices: tuple[Device, ...]
    root: Group
    overhead_s: float = 0.0
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def device_count(self) -> int:
        return self.root.device_count

    def device(self, name: str) -> Device:
        for device in self.devices:
            if device.name == name:
                return device
        raise ClusterError(f"cluster {self.name} has no device {name!r}", f"one of {[d.name for d in self.devices]}")

    def device_names(self) -> tuple[str, ...]:
        """The device type at every position, in tree order: the order ranks are numbered in."""
        return _names(self.root)

    def mesh(
        self, shape: Sequence[int], names: Sequence[str] | None = None, ranks: Sequence[int] | None = None
    ) -> Mesh:
        """Devices seen as an n-d mesh, the last axis innermost; the first devices unless `ranks` says which."""
        from meshwright.cluster.bind import bind_mesh

        if not isinstance(shape, Sequence):
            raise ClusterError(f"a mesh of shape {shape!r}", "a tuple of sizes", "write (8,) or (2, 4)")
        return bind_mesh(self, tuple(shape), names, ranks)

    def to_json(self) -> dict[str, Any]:
        import msgspec

        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Cluster:
        import msgspec

        try:
            cluster = msgspec.convert(plain, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ClusterError(f"a cluster in JSON: {error}", "what Cluster.to_json gives") from error
        cluster.verify()
        return cluster

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.name}: {counted(self.device_count, 'device')}, {self.backend}", *_tree_lines(self.root, "")]
        )

    def verify(self) -> None:
        if self.backend not in BACKENDS:
            raise ClusterError(f"cluster {self.name}: backend {self.backend!r}", f"one of {BACKENDS}")
        if self.overhead_s < 0:
            raise ClusterError(f"cluster {self.name}: overhead_s is {self.overhead_s}", "zero or more")
        for device in self.devices:
            device.verify()
        _verify_group(self.root, self)


@lru_cache(maxsize=16)
def _names(group: Group) -> tuple[str, ...]:
    return tuple(_leaves(group))


def _leaves(group: Group) -> Iterator[str]:
    for child, _ in group.children():
        if isinstance(child, str):
            yield child
        else:
            yield from _leaves(child)


def _verify_group(group: Group, cluster: Cluster) -> None:
    where = f"cluster {cluster.name}, level {group.level}"
    group.link.verify(where)
    if not group.members:
        raise ClusterError(f"{where} has no members", "at least one")
    for member in group.members:
        if member.count < 1:
            raise ClusterError(f"{where}: member count {member.count}", "1 or more")
        if member.uplink:
            member.uplink.verify(where)
        if isinstance(member.of, str):
            cluster.device(member.of)
        else:
            _verify_group(member.of, cluster)
    depths = {() if isinstance(m.of, str) else m.of.levels() for m in group.members}
    if len(depths) > 1:
        raise ClusterError(f"{where}: members have different levels {sorted(depths)}", "the same levels everywhere")


def _tree_lines(group: Group, indent: str) -> Iterator[str]:
    yield f"{indent}{group.level} ({describe_link(group.link)})"
    for member in group.members:
        uplink = f" [uplink {describe_link(member.uplink)}]" if member.uplink else ""
        if isinstance(member.of, str):
            yield f"{indent}  {member.count} x {member.of}{uplink}"
        else:
            yield f"{indent}  {member.count} x{uplink}"
            yield from _tree_lines(member.of, indent + "    ")


def describe_link(link: Link) -> str:
    many = f"{link.count} x " if link.count > 1 else ""
    shared = ", shared" if link.shared else ""
    taper = f", taper {link.taper:.3g}" if link.taper else ""
    return f"{many}{link.bandwidth / 1e9:.4g} GB/s each way, {link.latency_s * 1e6:.3g} us{shared}{taper}"


def merge_equal(members: list[Member]) -> tuple[Member, ...]:
    """Neighbours that are equal become one member with a count."""
    merged: list[Member] = []
    for member in members:
        if merged and (merged[-1].of, merged[-1].uplink) == (member.of, member.uplink):
            merged[-1] = Member(member.of, merged[-1].count + member.count, member.uplink)
        else:
            merged.append(member)
    return tuple(merged)
