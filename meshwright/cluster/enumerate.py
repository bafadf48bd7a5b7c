"""All logical meshes of a set of devices: every factorisation, up to four axes, equivalent ones once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.cluster.mesh import Mesh
from meshwright.cluster.topology import Cluster
from meshwright.cluster.tree import Group
from meshwright.errors import ClusterError


def shapes(n_devices: int, max_axes: int = 4) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations of `n_devices` into at most `max_axes` factors over 1; `(1,)` for one device."""
    if n_devices < 1:
        raise ClusterError(f"meshes of {n_devices} devices", "1 or more")
    if n_devices == 1:
        yield (1,)
        return
    yield (n_devices,)
    if max_axes > 1:
        for first in range(2, n_devices // 2 + 1):
            if n_devices % first == 0:
                yield from ((first, *rest) for rest in shapes(n_devices // first, max_axes - 1))


def meshes(cluster: Cluster, ranks: Sequence[int] | None = None, max_axes: int = 4) -> list[Mesh]:
    """A mesh for every shape of these devices (all of the cluster's by default).

    Two meshes are equivalent when their axes, as a set, have the same sizes and links: on a host where all
    links are alike, 2 x 4 and 4 x 2 give the planner the same choices. The first of each is kept.
    """
    if not 1 <= max_axes <= 4:
        raise ClusterError(f"meshes of up to {max_axes} axes", "1 to 4")
    chosen = tuple(ranks) if ranks is not None else tuple(range(cluster.device_count))
    found: dict[object, Mesh] = {}
    for shape in shapes(len(chosen), max_axes):
        mesh = cluster.mesh(shape, ranks=chosen)
        found.setdefault(links_of(mesh), mesh)
    return list(found.values())


def links_of(mesh: Mesh) -> object:
    """What a planner can see of a mesh: the multiset of its axes, and of the flattened ones, without names."""
    own = sorted((axis.size, repr(axis.kinds)) for axis in mesh.axes)
    flat = sorted((axis.size, repr(axis.kinds)) for axis in mesh.flat)
    return (tuple(own), tuple(flat), mesh.device)


def per_host(cluster: Cluster) -> int:
    """Devices of the smallest innermost group."""
    return min(_innermost(cluster.root))


def _innermost(group: Group) -> Iterator[int]:
    if all(isinstance(member.of, str) for member in group.members):
        yield group.device_count
    for member in group.members:
        if isinstance(member.of, Group):
            yield from _innermost(member.of)
