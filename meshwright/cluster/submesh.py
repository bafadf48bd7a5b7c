"""Submeshes for pipeline stages: which devices a stage gets, so that its own traffic stays on fast levels.

A stage's collectives are heavy and its boundary with the next stage is light, so each stage sits in the smallest
group (host, rack, ...) that has room for it, and takes whole hosts where it is larger than one. `place` fills
the largest stages first, each where least room is left over: for sizes that divide each other, as powers of two do,
no stage crosses a level that it could have kept within.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.cluster.enumerate import links_of, meshes
from meshwright.cluster.mesh import Mesh
from meshwright.cluster.topology import Cluster
from meshwright.cluster.tree import Group
from meshwright.errors import ClusterError


def submeshes(cluster: Cluster, n_devices: int, max_axes: int = 4) -> list[Mesh]:
    """Every mesh that a stage of `n_devices` may run on: each well-placed set of devices, in every shape.

    Sets that a planner cannot tell apart (same device types, same links) come once. Types are mixed only where no
    type has enough devices.
    """
    _check_sizes(cluster, [n_devices])
    tree = _Free(cluster)
    kinds = tree.types_with(n_devices)
    found: dict[object, Mesh] = {}
    for kind in kinds:
        for node in tree.root.smallest_with_room(n_devices, kind):
            for mesh in meshes(cluster, sorted(node.chosen(n_devices, kind)), max_axes):
                found.setdefault(links_of(mesh), mesh)
    return list(found.values())


def place(cluster: Cluster, sizes: Sequence[int], devices: Sequence[str | None] | None = None) -> list[tuple[int, ...]]:
    """Disjoint devices for stages of these sizes, in the order of the stages: `cluster.mesh(shape, ranks=ranks)`.

    `devices` names the type that each stage wants; None leaves it open, and then a stage mixes types only if no
    type has enough left.
    """
    _check_sizes(cluster, sizes)
    wanted = list(devices) if devices is not None else [None] * len(sizes)
    if len(wanted) != len(sizes):
        raise ClusterError(f"{len(sizes)} stages with {len(wanted)} device types", "one type, or None, per stage")
    for name in wanted:
        if name is not None:
            cluster.device(name)
    tree = _Free(cluster)
    placed: dict[int, tuple[int, ...]] = {}
    # Stages that need a type go first: others can make do with what is left.
    for stage in sorted(range(len(sizes)), key=lambda i: (wanted[i] is None, -sizes[i], i)):
        placed[stage] = tree.take(sizes[stage], wanted[stage])
    return [placed[stage] for stage in range(len(sizes))]


def _check_sizes(cluster: Cluster, sizes: Sequence[int]) -> None:
    if not isinstance(sizes, Sequence):
        raise ClusterError(f"stages of {sizes!r} devices", "a list of sizes, one per stage", "write [2, 2, 4]")
    if not sizes or any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise ClusterError(f"stages of {list(sizes)} devices", "whole numbers, 1 or more")
    if sum(sizes) > cluster.device_count:
        raise ClusterError(
            f"stages of {list(sizes)} devices need {sum(sizes)}; cluster {cluster.name} has {cluster.device_count}",
            f"at most {cluster.device_count} in all",
        )


@dataclass(slots=True)
class _Node:
    """A group, with the devices in it that no stage has taken yet, by type. children: the groups in it."""

    ranks: dict[str, list[int]]
    children: list[_Node]

    def free(self, kind: str | None) -> int:
        return len(self.ranks.get(kind, ())) if kind is not None else sum(map(len, self.ranks.values()))

    def smallest_with_room(self, n: int, kind: str | None) -> Iterator[_Node]:
        """The groups, as deep as possible, that have room for `n`."""
        if self.free(kind) < n:
            return
        inner = [node for child in self.children for node in child.smallest_with_room(n, kind)]
        yield from inner or (self,)

    def chosen(self, n: int, kind: str | None) -> list[int]:
        """`n` devices of this group: whole members while they fit, the rest from the one it fits best."""
        if not self.children:
            return self._own(kind)[:n]
        found: list[int] = []
        members = sorted((child for child in self.children if child.free(kind)), key=lambda child: -child.free(kind))
        for child in members:
            if child.free(kind) <= n - len(found):
                found += child._own(kind)
        missing = n - len(found)
        if missing:
            left = [child for child in members if child.free(kind) and not set(child._own(kind)) <= set(found)]
            best = min((c for c in left if c.free(kind) >= missing), key=lambda child: child.free(kind))
            found += best.chosen(missing, kind)
        return found

    def _own(self, kind: str | None) -> list[int]:
        if kind is not None:
            return list(self.ranks.get(kind, ()))
        return sorted(rank for ranks in self.ranks.values() for rank in ranks)

    def remove(self, gone: set[int]) -> None:
        self.ranks = {kind: [rank for rank in ranks if rank not in gone] for kind, ranks in self.ranks.items()}
        for child in self.children:
            if any(not gone.isdisjoint(ranks) for ranks in child.ranks.values()):
                child.remove(gone)


class _Free:
    """What is left of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        counter = iter(range(cluster.device_count))

        def build(of: Group) -> _Node:
            inner: list[_Node] = []
            ranks: dict[str, list[int]] = {}
            for child, _ in of.children():
                if isinstance(child, str):
                    ranks.setdefault(child, []).append(next(counter))
                    continue
                inner.append(build(child))
                for kind, own in inner[-1].ranks.items():
                    ranks.setdefault(kind, []).extend(own)
            return _Node(ranks, inner)

        self.cluster, self.root = cluster, build(cluster.root)

    def types_with(self, n: int) -> list[str | None]:
        """Device types of which so many are left; if there are none, any mixture, which is None."""
        found: list[str | None] = [kind for kind in self.root.ranks if self.root.free(kind) >= n]
        return found or [None]

    def take(self, n: int, kind: str | None) -> tuple[int, ...]:
        """The best `n` devices that are left, which are then gone."""
        if kind is not None and self.root.free(kind) < n:
            raise ClusterError(
                f"a stage of {n} {kind}, of which {self.root.free(kind)} are left on cluster {self.cluster.name}",
                "fewer or smaller stages on this type",
            )
        kinds = [kind] if kind else self.types_with(n)
        rooms = [(node, one) for one in kinds for node in self.root.smallest_with_room(n, one)]
        # In the smallest group; where it fills that best; first in order.
        node, one = min(rooms, key=lambda room: (_height(room[0]), room[0].free(room[1]), min(room[0]._own(room[1]))))
        ranks = sorted(node.chosen(n, one))
        self.root.remove(set(ranks))
        return tuple(ranks)


def _height(node: _Node) -> int:
    return 1 + _height(node.children[0]) if node.children else 0
