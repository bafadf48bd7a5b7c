"""Bind mesh axes to links: which levels each axis crosses, and what a rank gets there under contention."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import prod

from meshwright.cluster.device import slowest
from meshwright.cluster.mesh import FLAT, Axis, Hop, Mesh
from meshwright.cluster.topology import Cluster, Group, Link
from meshwright.errors import ClusterError

_NAMES = {1: ("x",), 2: ("x", "y"), 3: ("x", "y", "z"), 4: ("x", "y", "z", "w")}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a device sits: its ancestors innermost first, as (group id, child id, link, devices in that child)."""

    groups: tuple[int, ...]
    children: tuple[int, ...]
    links: tuple[Link, ...]
    devices_below: tuple[int, ...]


def bind_mesh(
    cluster: Cluster, shape: tuple[int, ...], names: Sequence[str] | None, ranks: Sequence[int] | None
) -> Mesh:
    """The mesh of this shape over the given devices of the cluster (the first ones by default)."""
    if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in shape):
        raise ClusterError(f"a mesh of shape {shape}", "whole numbers, 1 or more", "write (2, 8)")
    names = tuple(names) if names is not None else _NAMES.get(len(shape), tuple(f"x{i}" for i in range(len(shape))))
    if len(names) != len(shape) or any(not isinstance(name, str) for name in names):
        raise ClusterError(f"mesh shape {shape} with axis names {names}", "one name per axis")
    world = prod(shape)
    if world > cluster.device_count:
        raise ClusterError(
            f"a mesh of shape {shape} needs {world} devices; cluster {cluster.name} has {cluster.device_count}",
            f"a shape with a product of at most {cluster.device_count}",
            "choose a smaller mesh or more hosts",
        )
    chosen = tuple(ranks) if ranks is not None else tuple(range(world))
    numbers = [rank for rank in chosen if isinstance(rank, int) and 0 <= rank < cluster.device_count]
    if len(set(numbers)) != world or len(chosen) != world:
        raise ClusterError(
            f"a mesh of shape {shape} on ranks {list(chosen)}",
            f"{world} different numbers from 0 to {cluster.device_count - 1}, the devices of cluster {cluster.name}",
        )
    places = _places(cluster)
    used = [places[rank] for rank in chosen]
    load = _Load(used)

    def axis(which: tuple[int, ...]) -> Axis:
        size = prod(shape[i] for i in which)
        hops = _bind_axis(cluster, used, load, shape, which)
        return Axis(FLAT.join(names[i] for i in which), size, hops, cluster.backend, cluster.overhead_s)

    n_axes = range(len(shape))
    kinds = cluster.device_names()
    mesh = Mesh(
        axes=tuple(axis((i,)) for i in n_axes),
        device=slowest(tuple(cluster.device(kinds[rank]) for rank in chosen)),
        ranks=chosen,
        flat=tuple(axis(which) for count in range(2, len(shape) + 1) for which in combinations(n_axes, count)),
    )
    mesh.verify()
    return mesh


def logical_mesh(sizes: Mapping[str, int]) -> Mesh:
    """A mesh given by axis names and sizes alone, on the `local` preset: for tests and for pure layout work."""
    return _logical_mesh(tuple(sizes.items()))


@lru_cache
def _logical_mesh(sizes: tuple[tuple[str, int], ...]) -> Mesh:
    from meshwright.cluster.presets import preset

    shape = tuple(size for _, size in sizes)
    return preset("local", max(1, prod(shape))).mesh(shape, tuple(name for name, _ in sizes))


def _places(cluster: Cluster) -> list[_Place]:
    counter = iter(range(1 << 62))

    def walk(group: Group) -> Iterator[_Place]:
        group_id = next(counter)
        for child, link in group.children():
            child_id = next(counter)
            below = 1 if isinstance(child, str) else child.device_count
            inner = [_Place((), (), (), ())] if isinstance(child, str) else walk(child)
            for place in inner:
                yield _Place(
                    (*place.groups, group_id),
                    (*place.children, child_id),
                    (*place.links, link),
                    (*place.devices_below, below),
                )

    return list(walk(cluster.root))


def _bind_axis(
    cluster: Cluster, used: list[_Place], load: _Load, shape: tuple[int, ...], which: tuple[int, ...]
) -> tuple[Hop, ...]:
    """Hops of the groups that vary along the axes `which`; where groups differ, the slowest counts."""
    groups: dict[tuple[int, ...], list[_Place]] = defaultdict(list)
    for place, coordinates in zip(used, product(*map(range, shape)), strict=True):
        groups[tuple(c for i, c in enumerate(coordinates) if i not in which)].append(place)
    hops = []
    for depth, level in enumerate(cluster.root.levels()):
        fans = [_fan(group, depth) for group in groups.values()]
        if max(fans) > 1:
            crossing = [p for group, fan in zip(groups.values(), fans, strict=True) if fan > 1 for p in group]
            hops.append(_hop(level, max(fans), crossing, load, depth))
    return tuple(hops)


def _hop(level: str, size: int, crossing: list[_Place], load: _Load, depth: int) -> Hop:
    def bandwidth(place: _Place) -> float:
        return load.rank_bandwidth(place, depth) * place.links[depth].kept_among(size)

    slowest_place = min(crossing, key=bandwidth)
    return Hop(
        level,
        size,
        max(place.links[depth].latency_s for place in crossing),
        bandwidth(slowest_place),
        slowest_place.links[depth].efficiency,
    )


def _fan(group: list[_Place], depth: int) -> int:
    """The most members of one level-`depth` group that this communication group touches."""
    members: dict[int, set[int]] = defaultdict(set)
    for place in group:
        members[place.groups[depth]].add(place.children[depth])
    return max(len(children) for children in members.values())


class _Load:
    """How many ranks of the mesh sit in each group, and behind each member's uplink."""

    def __init__(self, used: list[_Place]) -> None:
        self.in_group = Counter(group for place in used for group in place.groups)
        self.behind = Counter(child for place in used for child in place.children)

    def rank_bandwidth(self, place: _Place, depth: int) -> float:
        """What one rank gets at this level while all ranks of the mesh communicate.

        Traffic that leaves a rack has also left a host, so every level above the innermost up to `depth` limits
        it; the innermost link (NVLink) is not on the way to the network.
        """
        return min(self._share(place, level) for level in ([0] if depth == 0 else range(1, depth + 1)))

    def _share(self, place: _Place, depth: int) -> float:
        link = place.links[depth]
        if link.shared:
            return link.total_bandwidth / self.in_group[place.groups[depth]]
        # One device drives only its part of a host's network cards, even when its neighbours are silent.
        drivable = max(1.0, link.count / place.devices_below[depth]) * link.bandwidth
        return min(link.total_bandwidth / self.behind[place.children[depth]], drivable)
