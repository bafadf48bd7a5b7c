"""Submeshes that the stages of a pipeline may take, and the links between them.

Sizes that are searched: divisors of a host's devices, and numbers of hosts that are powers of two or divide the
cluster's, none smaller than a MOST_UNITS-th of the cluster. Meshes have up to two axes; where a stage spans several
hosts, the inner axis stays within one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshwright.caches import CACHES
from meshwright.cluster import Cluster, Mesh
from meshwright.cluster.enumerate import links_of, per_host
from meshwright.cluster.submesh import place, submeshes
from meshwright.errors import MeshwrightError, PlanError
from meshwright.pins.parts import pinned_mesh
from meshwright.pins.pins import Pins, parse_pins
from meshwright.planner.effort import FEW, MOST_UNITS
from meshwright.price.handover import Rate


@dataclass(frozen=True, slots=True)
class StageMesh:
    """A class of equal submeshes.

    mesh: stands for all of them.
    pins: as they read on it.
    devices: how many it takes of each device type of the cluster.
    memory_bytes: limit per device.
    """

    mesh: Mesh
    pins: Pins
    devices: tuple[int, ...]
    memory_bytes: int

    @property
    def ranks(self) -> int:
        return self.mesh.world_size

    @property
    def name(self) -> str:
        return "x".join(map(str, self.mesh.sizes))

    @property
    def place(self) -> tuple[int, str | None]:
        """(number of devices, their type or None where it mixes types): what `cluster.submesh.place` takes."""
        return self.ranks, self.mesh.device.name if sum(map(bool, self.devices)) == 1 else None


def device_counts(cluster: Cluster, ranks: Iterable[int]) -> tuple[int, ...]:
    """Number of devices of each type among these ranks."""
    kinds = cluster.device_names()
    found = [kinds[rank] for rank in ranks]
    return tuple(found.count(device.name) for device in cluster.devices)


def stage_sizes(cluster: Cluster, stages: int | None = None) -> list[int]:
    """Numbers of devices that a stage may have. stages: only sizes that leave devices for so many stages."""
    total, inner = cluster.device_count, per_host(cluster)
    if total <= FEW:
        found = list(range(1, total))
    else:
        hosts = -(-total // inner)
        wholes = [k for k in range(1, hosts + 1) if k & (k - 1) == 0 or hosts % k == 0]
        found = [n for n in range(1, inner) if inner % n == 0] + [inner * k for k in wholes]
    least = max(1, total // MOST_UNITS)
    return [n for n in sorted(set(found)) if least <= n < total and (stages is None or n <= total - stages + 1)]


def stage_meshes(
    cluster: Cluster,
    pins: Sequence[str],
    budget_bytes: int | None,
    stages: int | None = None,
    sizes: Sequence[int] | None = None,
    headroom: float = 0.0,
) -> list[StageMesh]:
    """Every class of submeshes that the pins allow.

    budget_bytes: limit per device.
    stages: as for `stage_sizes`.
    sizes: only these numbers of devices.
    headroom: part of each device that is left free where there is no budget.
    """
    shape, inner = pinned_mesh(pins), per_host(cluster)
    found = []
    for size in stage_sizes(cluster, stages) if sizes is None else sorted(set(sizes)):
        for mesh in _shaped(cluster, size, inner, shape):
            if shape is not None and mesh.sizes != shape:
                continue
            try:
                parsed = parse_pins(pins, mesh)
            except PlanError:
                continue
            limit = mesh.device.limit_bytes(budget_bytes, headroom)
            found.append(StageMesh(mesh, parsed, device_counts(cluster, mesh.ranks), limit))
    return found


def _shaped(cluster: Cluster, size: int, inner: int, shape: tuple[int, ...] | None) -> list[Mesh]:
    """Meshes of so many devices; of those with the same links, one."""
    if size <= inner or shape is not None:
        return submeshes(cluster, size, 2 if shape is None else max(1, len(shape)))
    found: dict[object, Mesh] = {}
    for device in cluster.devices:
        try:
            ranks = place(cluster, [size], [device.name])[0]
        except MeshwrightError:
            continue
        for inside in (n for n in range(1, inner + 1) if inner % n == 0 and size % n == 0):
            mesh = cluster.mesh((size,) if inside == 1 else (size // inside, inside), ranks=ranks)
            found.setdefault(links_of(mesh), mesh)
    return list(found.values()) or submeshes(cluster, size, 2)


class SubmeshLinks:
    """Rates of the links between submeshes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._classes: dict[object, Rate] = {}
        self._known: dict[object, Rate] = {}

    def between_classes(self, one: StageMesh, other: StageMesh) -> Rate:
        """The rate between two stages that have the cluster to themselves, which no placing of more stages beats."""
        key = (one.place, other.place)
        if key not in self._classes:
            pair = (one.place, other.place)
            try:
                ranks = place(self.cluster, [size for size, _ in pair], [kind for _, kind in pair])
            except MeshwrightError:
                ranks = [tuple(range(one.ranks)), tuple(range(one.ranks, one.ranks + other.ranks))]
            self._classes[key] = self.between(*ranks)
        return self._classes[key]

    def between(self, sources: Sequence[int], targets: Sequence[int]) -> Rate:
        """The rate of one pair of ranks while all pairs send at once."""
        key = (tuple(sources), tuple(targets))
        if key not in self._known:
            pairs = min(len(sources), len(targets), MOST_UNITS)
            chosen = [*_spread(sources, pairs), *_spread(targets, pairs)]
            hops = [hop for hops in self.cluster.mesh((2, pairs), ranks=chosen).axes[0].kinds for hop in hops]
            slowest = min(hop.rate("send") for hop in hops)
            self._known[key] = Rate(max(hop.latency_s for hop in hops) + self.cluster.overhead_s, slowest)
        return self._known[key]


def _spread(ranks: Sequence[int], count: int) -> list[int]:
    """Some of the ranks, evenly spread; of very many the first, so that their hosts are as busy as all are."""
    if count == MOST_UNITS < len(ranks):
        return list(ranks[:count])
    return [ranks[i * len(ranks) // count] for i in range(count)]


@CACHES.memoized(maxsize=64)
def placed(cluster: Cluster, wanted: tuple[tuple[int, str | None], ...]) -> list[tuple[int, ...]]:
    """Ranks of every stage. wanted: (number of devices, type) of each."""
    return place(cluster, [size for size, _ in wanted], [kind for _, kind in wanted])


@CACHES.memoized(maxsize=512)
def mesh_on(cluster: Cluster, sizes: tuple[int, ...], ranks: tuple[int, ...]) -> Mesh:
    return cluster.mesh(sizes, ranks=ranks)
