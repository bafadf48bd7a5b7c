"""Detection: from probes of a live job to a Cluster. Knows nothing of torch; `detect` gives it a real Prober.

1. Ranks with the same host name are a host. Within one host of each kind, and among one rank of each host,
   `find_islands` finds levels; members that are slow on their own keep their own uplink (`structure`).
2. Per level: one flow alone, all flows at once (parallel links, or a medium they share), and latency (`links`).
3. Per level, one group of ranks runs each collective; what it reaches of the level's bandwidth is its efficiency.
   So process groups number one per level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.cluster.cost import collective_s
from meshwright.cluster.detect.devices import device_types
from meshwright.cluster.detect.islands import Island
from meshwright.cluster.detect.links import Level, levels_of, measure_links
from meshwright.cluster.detect.probe import Prober, of_repeats
from meshwright.cluster.detect.structure import Probes, hosts_of, structure
from meshwright.cluster.mesh import Axis
from meshwright.cluster.topology import Cluster
from meshwright.cluster.tree import Group, Link, Member, merge_equal

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class Survey:
    """One detection run; `cluster()` does it."""

    def __init__(self, prober: Prober, backend: str, say: Callable[[str], None] = lambda text: None) -> None:
        self.prober, self.backend, self.say = prober, backend, say
        self.probes = Probes(prober)
        self.overhead_s = 0.0
        self.devices, self.device_of, self.sources = device_types(prober.ranks)

    def cluster(self) -> Cluster:
        """Measure everything and return the cluster, its figures' spreads in `sources`."""
        self.say(f"{len(hosts_of(self.prober))} hosts, {len(self.prober.ranks)} ranks")
        found = structure(self.probes, self.device_of)
        levels = levels_of(found.tree, found.names)
        for level in levels:
            innermost = level is levels[0]
            slow = found.slow_inside if innermost else found.slow_outside
            self.sources += measure_links(level, self.probes, slow, innermost)
            self.say(f"{level.name}: {level.link}, uplinks of their own: {len(level.uplinks)}")
        order = list(found.tree.members())
        if order != sorted(order):
            self.sources.append(("rank_order", " ".join(map(str, order))))
        return self._with_collectives(found.tree, levels)

    def _assemble(self, tree: Island, levels: list[Level]) -> Cluster:
        name, root = f"detected-{len(self.prober.ranks)}", self._group(tree, levels)
        return Cluster(name, self.backend, self.devices, root, self.overhead_s, tuple(self.sources))

    def _group(self, island: Island, levels: list[Level]) -> Group:
        level = levels[island.depth - 1]
        members = []
        for child in island.children:
            inner: str | Group = self.device_of[child] if isinstance(child, int) else self._group(child, levels)
            first = child if isinstance(child, int) else next(child.members())
            members.append(Member(inner, 1, level.uplinks.get(first)))
        link = level.links.get(next(island.members()), level.link)
        return Group(level.name, link, merge_equal(members))

    def _with_collectives(self, tree: Island, levels: list[Level]) -> Cluster:
        """Fit the overhead and each level's efficiency per collective, one group of ranks per level."""
        cluster = self._assemble(tree, levels)
        position = {rank: i for i, rank in enumerate(tree.members())}
        groups = [[ranks[0] for ranks in level.widest] for level in levels]
        tiny = [(group, self.prober.collective("all_reduce", group, 4 * len(group))) for group in groups if group[1:]]
        for group, times in tiny[:1]:
            axis = cluster.mesh((len(group),), ranks=[position[rank] for rank in group]).axes[0]
            self.overhead_s = max(0.0, min(times) - collective_s("all_reduce", 0, axis))
            self.sources.append(("overhead_s", f"measured, {of_repeats(times)}"))
        cluster = self._assemble(tree, levels)
        for level, group in zip(levels, groups, strict=True):
            if len(group) > 1:
                axis = cluster.mesh((len(group),), ranks=[position[rank] for rank in group]).axes[0]
                n_bytes = _message_bytes(axis.hops[-1].bandwidth, len(group), self.prober.largest_bytes)
                reached = [self._efficiency(level, kind, group, n_bytes, axis) for kind in _COLLECTIVES]
                level.link = _with_efficiency(level.link, tuple(reached))
                level.uplinks = {r: _with_efficiency(up, tuple(reached)) for r, up in level.uplinks.items()}
        return self._assemble(tree, levels)

    def _efficiency(self, level: Level, kind: str, group: list[int], n_bytes: int, axis: Axis) -> tuple[str, float]:
        times = self.prober.collective(kind, group, n_bytes)
        fixed_s = collective_s(kind, 0, axis)
        wire_s = collective_s(kind, n_bytes, axis) - fixed_s
        measured = of_repeats(times)
        self.sources.append((f"{level.name}.efficiency.{kind}", f"measured on {n_bytes} bytes, {measured}"))
        return kind, round(wire_s / max(measured.value - fixed_s, 0.1 * measured.value), 4)


def _with_efficiency(link: Link, reached: tuple[tuple[str, float], ...]) -> Link:
    return replace(link, efficiency=reached)


def _message_bytes(rate_per_rank: float, n: int, largest_bytes: int) -> int:
    """About 0.15 s on the wire, in whole items per rank."""
    item = 4 * n
    return max(item, min(largest_bytes, int(rate_per_rank * 0.15)) // item * item)
