"""Cluster: devices in nested groups (host, rack, pod), each group with the links that join its members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.caches import CACHES
from meshwright.cluster.bind import bind_mesh
from meshwright.cluster.device import Device
from meshwright.cluster.frozen import AsJson
from meshwright.cluster.mesh import BACKENDS, Mesh
from meshwright.cluster.tree import Group, describe_link
from meshwright.errors import ClusterError, counted


@dataclass(frozen=True, slots=True)
class Cluster(AsJson):
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
        if not isinstance(shape, Sequence):
            raise ClusterError(f"a mesh of shape {shape!r}", "a tuple of sizes", "write (8,) or (2, 4)")
        return bind_mesh(self, tuple(shape), names, ranks)

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


@CACHES.memoized(maxsize=16)
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
