"""Bind mesh axes to links: which levels each axis crosses, and what a rank gets there under contention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, count
from math import prod
from typing import TYPE_CHECKING, Protocol

from meshwright.caches import CACHES
from meshwright.cluster.device import Device, slowest
from meshwright.cluster.mesh import FLAT, Axis, Hop, Mesh, ranks_behind
from meshwright.cluster.tree import Group, Link
from meshwright.errors import ClusterError

if TYPE_CHECKING:
    import numpy as np

_Reach = tuple[tuple[Link, float], ...]  # by level: a rank's link, and the bytes per second it gets there


@dataclass(frozen=True, slots=True)
class _Places:
    """Where each device sits, by level and device, innermost level first.

    groups: the group that it is in. children: the member of that group that it is in. cases: the place in `links`.
    links: the link that a member has, and how many devices share it.
    """

    groups: np.ndarray
    children: np.ndarray
    cases: np.ndarray
    links: tuple[tuple[Link, int], ...]


class DeviceTree(Protocol):
    """What binding reads of a Cluster."""

    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def root(self) -> Group: ...
    @property
    def overhead_s(self) -> float: ...
    @property
    def device_count(self) -> int: ...
    def device(self, name: str) -> Device: ...
    def device_names(self) -> tuple[str, ...]: ...


def axis_names(count: int) -> tuple[str, ...]:
    """What axes are called before it is known what they will do."""
    return tuple("xyzw"[:count]) if count <= 4 else tuple(f"x{i}" for i in range(count))


def bind_mesh(
    cluster: DeviceTree,
    shape: tuple[int, ...],
    names: Sequence[str] | None,
    ranks: Sequence[int] | None,
    others: tuple[int, ...] = (),
) -> Mesh:
    """The mesh of this shape over the given devices of the cluster (the first ones by default). others: devices that
    communicate at the same time, and so have their part of the links."""
    check_shape(shape)
    names = tuple(names) if names is not None else axis_names(len(shape))
    if len(names) != len(shape) or any(not isinstance(name, str) for name in names):
        raise ClusterError(f"mesh shape {shape} with axis names {names}", "one name per axis")
    world, count = prod(shape), cluster.device_count
    if world > count:
        raise ClusterError(
            f"a mesh of shape {shape} needs {world} devices; cluster {cluster.name} has {count}",
            f"a shape with a product of at most {count}",
            "choose a smaller mesh or more hosts",
        )
    if ranks is not None and not isinstance(ranks, Iterable):
        raise ClusterError(f"a mesh on ranks {ranks!r}", f"{world} numbers of devices", "write ranks=(0, 1)")
    chosen = tuple(ranks) if ranks is not None else tuple(range(world))
    numbers = [rank for rank in chosen if isinstance(rank, int) and 0 <= rank < count]
    if len(set(numbers)) != world or len(chosen) != world:
        raise ClusterError(
            f"a mesh of shape {shape} on ranks {list(chosen)}",
            f"{world} different numbers from 0 to {count - 1}, the devices of cluster {cluster.name}",
        )
    load, levels = _load(cluster.root, (*chosen, *others)), cluster.root.levels()

    def axis(which: tuple[int, ...]) -> Axis:
        size = prod(shape[i] for i in which)
        hops, *others = _bind_axis(levels, load, shape, which)
        name = FLAT.join(names[i] for i in which)
        return Axis(name, size, hops, cluster.backend, cluster.overhead_s, tuple(others))

    n_axes = range(len(shape))
    kinds = cluster.device_names()
    mesh = Mesh(
        axes=tuple(axis((i,)) for i in n_axes),
        device=slowest(tuple(cluster.device(kind) for kind in dict.fromkeys(kinds[rank] for rank in chosen))),
        ranks=chosen,
        flat=tuple(axis(which) for count in range(2, len(shape) + 1) for which in combinations(n_axes, count)),
    )
    mesh.verify()
    return mesh


def check_shape(shape: tuple[int, ...]) -> None:
    if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in shape):
        raise ClusterError(f"a mesh of shape {shape}", "whole numbers, 1 or more", "write (2, 8)")


@CACHES.memoized(maxsize=8)
def _places(root: Group) -> _Places:
    import numpy as np  # a mistake in a cluster's name is refused without it

    counter = count()
    links: dict[tuple[Link, int], int] = {}

    def walk(group: Group) -> Iterator[tuple[tuple[int, int, int], ...]]:
        """(group, child, link) of each device, by level."""
        group_id = next(counter)
        for child, link in group.children():
            below = 1 if isinstance(child, str) else child.device_count
            here = group_id, next(counter), links.setdefault((link, below), len(links))
            for inner in [()] if isinstance(child, str) else walk(child):
                yield *inner, here

    groups, children, cases = np.array(list(walk(root))).transpose(2, 1, 0)
    return _Places(groups, children, cases, tuple(links))


def _bind_axis(
    levels: tuple[str, ...], load: _Load, shape: tuple[int, ...], which: tuple[int, ...]
) -> list[tuple[Hop, ...]]:
    """The different hops that ranks make in the groups that vary along the axes `which`, the slowest first."""
    import numpy as np

    grid = np.arange(prod(shape)).reshape(shape).transpose(*(i for i in range(len(shape)) if i not in which), *which)
    order = grid.ravel()
    row = np.arange(len(order)) // prod(shape[i] for i in which) * load.ids
    sizes, behind = [], []
    for inside, child in zip(load.groups, load.children, strict=True):
        _, first, pair, many = np.unique(
            row + child[order], return_index=True, return_inverse=True, return_counts=True
        )  # the children of a group of ranks, and how many ranks are behind each
        _, place, members = np.unique((row + inside[order])[first], return_inverse=True, return_counts=True)
        sizes.append(members[place][pair])
        behind.append(many[pair])
    ways = set(zip(load.kinds[order].tolist(), *(column.tolist() for column in (*sizes, *behind)), strict=True))
    depth = len(levels)
    found = {(way[0], way[1 : depth + 1], way[depth + 1 :]) for way in ways}
    return _slowest_first({_hops(levels, load.reach[kind], sizes, behind) for kind, sizes, behind in found})


def _hops(levels: tuple[str, ...], reach: _Reach, sizes: tuple[int, ...], behind: tuple[int, ...]) -> tuple[Hop, ...]:
    """The hops of a rank, by level: what it gets there, the members of its group there, the ranks behind its own."""
    hops, product = [], 1
    for level, (link, bandwidth), size, ranks in zip(levels, reach, sizes, behind, strict=True):
        if size > 1:
            rate = bandwidth * link.kept_among(size)
            behind_it = 0 if ranks == product else ranks
            given = (link.efficiency, behind_it, link.shared, link.measured, link.jitter)
            hops.append(Hop(level, size, link.latency_s, rate, *given))
            product = ranks * size
    return tuple(hops)


def _slowest_first(kinds: set[tuple[Hop, ...]]) -> list[tuple[Hop, ...]]:
    """Without those that another is nowhere faster than; by the rate of a ring, then by latency."""

    def order(hops: tuple[Hop, ...]) -> tuple[float, float, str]:
        rate = min((n * hop.bandwidth for n, hop in zip(ranks_behind(hops), hops, strict=True)), default=0.0)
        return rate, -sum(hop.latency_s for hop in hops), repr(hops)

    if len(kinds) == 1:
        return list(kinds)
    return sorted((a for a in kinds if not any(a != b and _never_slower(a, b) for b in kinds)), key=order)


def _never_slower(a: tuple[Hop, ...], b: tuple[Hop, ...]) -> bool:
    return len(a) == len(b) and all(
        (x.level, x.size, x.behind, x.efficiency, x.measured) == (y.level, y.size, y.behind, y.efficiency, y.measured)
        and x.latency_s <= y.latency_s
        and x.bandwidth >= y.bandwidth
        for x, y in zip(a, b, strict=True)
    )


class _Load:
    """What each rank gets of its links: how many ranks of the mesh sit in each group, and behind each uplink.

    `reach` lists the different cases, `kinds` says which is each rank's; groups, children: its own at each level.
    """

    def __init__(self, places: _Places, ranks: Sequence[int]) -> None:
        import numpy as np

        used = np.array(ranks)
        self.groups, self.children = places.groups[:, used], places.children[:, used]
        self.ids = 1 + int(max(places.groups.max(), places.children.max()))
        in_group, behind = np.bincount(self.groups.ravel()), np.bincount(self.children.ravel())
        ways = np.stack([places.cases[:, used], in_group[self.groups], behind[self.children]], axis=-1)
        found, kinds = np.unique(ways.swapaxes(0, 1), axis=0, return_inverse=True)
        self.kinds = kinds.ravel()
        self.reach = [_reach(places, way) for way in found.tolist()]


def _reach(places: _Places, way: list[list[int]]) -> _Reach:
    """What one rank gets at each level while all ranks of the mesh communicate.

    Traffic that leaves a rack has also left a host, so every level above the innermost up to a level limits
    what crosses it; the innermost link (NVLink) is not on the way to the network.
    way: by level, (case, ranks in the group, ranks behind the uplink).
    """
    inside, *above = (_share(*places.links[case], in_group, behind) for case, in_group, behind in way)
    links = (places.links[case][0] for case, _, _ in way)
    return tuple(zip(links, (inside, *accumulate(above, min)), strict=True))


def _share(link: Link, devices: int, in_group: int, behind: int) -> float:
    """Of a link that so many devices have: ranks in its group, ranks that use it."""
    if link.shared:
        return link.total_bandwidth / in_group
    # One device drives only its part of a host's network cards, even when its neighbours are silent.
    drivable = max(1.0, link.count / devices) * link.bandwidth
    return min(link.total_bandwidth / behind, drivable)


@CACHES.memoized(maxsize=64)
def _load(root: Group, ranks: tuple[int, ...]) -> _Load:
    return _Load(_places(root), ranks)
