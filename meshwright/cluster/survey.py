"""Detection: from probes of a live job to a Cluster. Knows nothing of torch; `detect` gives it a real Prober.

1. Ranks with the same host name are a host. Within one host of each kind, and among one rank of each host,
   `find_islands` finds levels; members that are slow on their own keep their own uplink.
2. Per level: one flow alone, all flows at once (parallel links, or a medium they share), and latency.
3. Per level, one group of ranks runs each collective; what it reaches of the level's bandwidth is its efficiency.
   So process groups number one per level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from meshwright.cluster.cost import collective_s
from meshwright.cluster.islands import Island, find_islands, level_out, pull_in_slow_members
from meshwright.cluster.mesh import Axis
from meshwright.cluster.probe import Measured, Prober, latency, of_repeats, rate, rates
from meshwright.cluster.survey_devices import device_types
from meshwright.cluster.toml_read import merge_equal
from meshwright.cluster.topology import Cluster, Group, Link, Member

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_CPU_VARIES, _GPU_VARIES = 4.0, 2.0
_MUCH_SLOWER = 2.0
_DIFFERENT = 1.25  # an uplink this far from the others' is kept apart


@dataclass(slots=True)
class _Level:
    """One level being measured: its name, its islands as lists of children, each a list of ranks."""

    name: str
    islands: list[list[list[int]]]
    single: dict[int, float] = field(default_factory=dict)  # first rank of a child -> rate of one flow
    link: Link = field(default_factory=lambda: Link(0.0, 1.0))
    uplinks: dict[int, Link] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)  # first rank of an island -> a link unlike the others'


class Survey:
    """One detection run; `cluster()` does it."""

    def __init__(self, prober: Prober, backend: str, say: Callable[[str], None] = lambda text: None) -> None:
        self.prober, self.backend, self.say = prober, backend, say
        self.probed: dict[tuple[int, int], Measured] = {}
        self.overhead_s = 0.0
        self.devices, self.device_of, self.sources = device_types(prober.ranks)

    def cluster(self) -> Cluster:
        """Measure everything and return the cluster, its figures' spreads in `sources`."""
        tree, names, slow_inside, slow_outside = self._structure()
        levels = self._levels(tree, names)
        for level in levels:
            innermost = level is levels[0]
            self._measure_links(level, slow_inside if innermost else slow_outside, innermost)
        return self._with_collectives(self._assemble(tree, levels), tree, levels)

    # -- structure ----------------------------------------------------------------------------------------------

    def _probe(self, a: int, b: int) -> float:
        key = (min(a, b), max(a, b))
        if key not in self.probed:
            self.probed[key] = rate(self.prober, key)
        return self.probed[key].value

    def _probe_again(self, a: int, b: int) -> float:
        key = (min(a, b), max(a, b))
        again = rate(self.prober, key)
        self.probed[key] = max(again, self.probed.get(key, again), key=lambda measured: measured.value)
        return self.probed[key].value

    def _structure(self) -> tuple[Island, list[str], dict[int, float], dict[int, float]]:
        """Ranks as a tree with every rank at the same depth, level names innermost first, and what is slow.

        First devices with slow links within their hosts, then hosts and racks (by first rank) with slow uplinks.
        """
        hosts = self._hosts()
        self.say(f"{len(hosts)} hosts, {len(self.prober.ranks)} ranks")
        inside, slow_inside = self._inside(hosts)
        slow_outside: dict[int, float] = {}
        network = find_islands([ranks[0] for ranks in hosts], self._probe, again=self._probe_again)
        above: Island | None = None
        if isinstance(network, Island):
            above, slow_outside = pull_in_slow_members(network)
        names = ["host"] if max(t.depth for t in inside.values()) == 1 else ["island", "host"]
        outer = {0: [], 1: ["pod"], 2: ["rack", "pod"]}
        n_above = above.depth if above else 0
        names += outer.get(n_above, [f"level{i}" for i in range(1, n_above)] + ["pod"])
        tree = _grafted(above, inside, hosts, n_above) if above else inside[hosts[0][0]]
        return tree, names, slow_inside, slow_outside

    def _hosts(self) -> list[list[int]]:
        by_name: dict[str, list[int]] = {}
        for rank, info in enumerate(self.prober.ranks):
            by_name.setdefault(info.host, []).append(rank)
        return list(by_name.values())

    def _inside(self, hosts: list[list[int]]) -> tuple[dict[int, Island], dict[int, float]]:
        """Islands within each host, by its first rank: found on one host of each kind, copied to its likes."""
        found: dict[int, Island] = {}
        models: dict[tuple[str, ...], tuple[Island, list[int]]] = {}
        slow: dict[int, float] = {}
        for ranks in hosts:
            kind = tuple(self.device_of[rank] for rank in ranks)
            if kind in models:
                model, originals = models[kind]
                found[ranks[0]] = _renamed(model, dict(zip(originals, ranks, strict=True)))
                continue
            # Within a host, memory and scheduling make rates vary; NVLink against PCIe is a far larger factor.
            varies = _CPU_VARIES if self.prober.ranks[ranks[0]].kind == "cpu" else _GPU_VARIES
            tree = find_islands(ranks, self._probe, varies, self._probe_again)
            if isinstance(tree, Island):
                tree, slow_here = pull_in_slow_members(tree)
                slow |= slow_here
            else:
                tree = Island(1e12, (tree,))
            models[kind] = (tree, ranks)
            found[ranks[0]] = tree
        depth = max(tree.depth for tree in found.values())
        return {first: _island(level_out(tree, depth)) for first, tree in found.items()}, slow

    # -- links --------------------------------------------------------------------------------------------------

    def _levels(self, tree: Island, names: list[str]) -> list[_Level]:
        """Islands of each level, innermost first."""
        layers: list[list[Island]] = [[tree]]
        while isinstance(layers[-1][0].children[0], Island):
            layers.append([child for island in layers[-1] for child in island.children if isinstance(child, Island)])
        return [
            _Level(name, [[_ranks(child) for child in island.children] for island in islands])
            for name, islands in zip(names, reversed(layers), strict=True)
        ]

    def _measure_links(self, level: _Level, slow: dict[int, float], innermost: bool) -> None:
        """One flow alone between neighbours, all at once, and latency; from these the level's link."""
        wide = max(level.islands, key=len)
        if len(wide) < 2:
            level.link = Link(0.0, 1e12)
            self.sources.append((f"{level.name}.bandwidth", "assumption: nothing to measure, one member"))
            return
        # Hosts of a kind are alike inside until the comparison below says otherwise; uplinks are measured one by one.
        self._measure_singles(level, [wide] if innermost else level.islands)
        first, second = wide[0][0], wide[1][0]
        delay = latency(self.prober, (first, second))
        usual = sorted(value for rank, value in level.single.items() if rank not in slow)
        single = usual[len(usual) // 2] if usual else max(level.single.values())
        together = self._together(wide)
        level.link = _link(delay.value, single, together, self._apart(level, wide), wide)
        if innermost:
            self._compare(level)
            self._note_slow_ranks(level, slow)
        elif not level.link.shared:
            level.uplinks = {
                rank: Link(delay.value, value, level.link.count)
                for rank, value in level.single.items()
                if not single / _DIFFERENT < value < single * _DIFFERENT
            }
        spread = max((m.spread for m in self.probed.values()), default=0.0)
        self.sources += [
            (f"{level.name}.bandwidth", f"measured, spread of repeats up to {spread:.0%}"),
            (f"{level.name}.latency_s", f"measured, {delay}"),
        ]
        self.say(f"{level.name}: {level.link}, uplinks of their own: {len(level.uplinks)}")

    def _note_slow_ranks(self, level: _Level, slow: dict[int, float]) -> None:
        """A device whose link is slow within its host is said, not modelled: no plan can route around it."""
        inside = {rank: slow[rank] for rank in level.single if rank in slow}
        if inside:
            text = ", ".join(f"rank {rank} at {value / 1e9:.3g} GB/s" for rank, value in inside.items())
            self.sources.append((f"{level.name}.slow", text))

    def _compare(self, level: _Level) -> None:
        """One flow in every innermost island at the same time: one much slower than the others has its own link."""
        pairs = [(children[0][0], children[1][0]) for children in level.islands if len(children) > 1]
        if len(pairs) < 2:
            return
        found = [measured.value for measured in rates(self.prober, pairs)]
        typical = sorted(found)[len(found) // 2]
        for (first, _), value in zip(pairs, found, strict=True):
            if value * _MUCH_SLOWER < typical:
                link = level.link
                level.links[first] = Link(link.latency_s, link.bandwidth * value / typical, link.count, link.shared)

    def _measure_singles(self, level: _Level, islands: list[list[list[int]]]) -> None:
        """Each child's rate: the best it showed towards any sibling, since the slower end decides a flow."""
        for children in islands:
            firsts = [ranks[0] for ranks in children]
            for i, rank in enumerate(firsts if len(firsts) > 1 else ()):
                self._probe(rank, firsts[(i + 1) % len(firsts)])
            for rank in firsts if len(firsts) > 1 else ():
                level.single[rank] = max(
                    measured.value
                    for pair, measured in self.probed.items()
                    if rank in pair and set(pair) <= set(firsts)
                )

    def _together(self, children: list[list[int]]) -> list[float]:
        """Bytes per second each child sends while every child sends to the next with all its ranks."""
        pairs, senders = [], []
        for i, ranks in enumerate(children):
            following = children[(i + 1) % len(children)]
            for j, rank in enumerate(ranks):
                pairs.append((rank, following[j % len(following)]))
                senders.append(i)
        return [measured.value for measured in rates(self.prober, pairs, senders)]

    def _apart(self, level: _Level, children: list[list[int]]) -> float:
        """What `_together` would add up to if every child had its own link: a flow gets what its slower end has."""
        alone = [level.single[ranks[0]] for ranks in children]
        return sum(min(mine, following) for mine, following in zip(alone, alone[1:] + alone[:1], strict=True))

    # -- the cluster --------------------------------------------------------------------------------------------

    def _assemble(self, tree: Island, levels: list[_Level]) -> Cluster:
        order = list(tree.members())
        if order != sorted(order):
            self.sources.append(("rank_order", " ".join(map(str, order))))
        root = self._group(tree, levels)
        return Cluster(f"detected-{len(order)}", self.backend, self.devices, root, self.overhead_s, tuple(self.sources))

    def _group(self, island: Island, levels: list[_Level]) -> Group:
        level = levels[island.depth - 1]
        members = []
        for child in island.children:
            inner: str | Group = self.device_of[child] if isinstance(child, int) else self._group(child, levels)
            first = child if isinstance(child, int) else next(child.members())
            members.append(Member(inner, 1, level.uplinks.get(first)))
        link = level.links.get(next(island.members()), level.link)
        return Group(level.name, link, merge_equal(members))

    def _with_collectives(self, cluster: Cluster, tree: Island, levels: list[_Level]) -> Cluster:
        """Fit the overhead and each level's efficiency per collective, one group of ranks per level."""
        position = {rank: i for i, rank in enumerate(tree.members())}
        groups = [[ranks[0] for ranks in max(level.islands, key=len)] for level in levels]
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

    def _efficiency(self, level: _Level, kind: str, group: list[int], n_bytes: int, axis: Axis) -> tuple[str, float]:
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


def _link(latency_s: float, single: float, together: Sequence[float], apart: float, children: list[list[int]]) -> Link:
    """Parallel links if a child sends more with all its ranks than with one; shared if all together send little."""
    total = sum(together)
    if total < 0.6 * apart:
        return Link(latency_s, max(total, single), shared=True)
    best = max(together)
    count = min(max(1, round(best / single)), max(len(ranks) for ranks in children))
    return Link(latency_s, single, count)


def _ranks(child: Island | int) -> list[int]:
    return [child] if isinstance(child, int) else list(child.members())


def _island(tree: Island | int) -> Island:
    assert isinstance(tree, Island)
    return tree


def _renamed(tree: Island, names: dict[int, int]) -> Island:
    return Island(tree.rate, tuple(names[c] if isinstance(c, int) else _renamed(c, names) for c in tree.children))


def _grafted(above: Island, inside: dict[int, Island], hosts: list[list[int]], depth: int) -> Island:
    """The network's tree with each host's own tree in place of its first rank."""

    def graft(tree: Island | int) -> Island:
        if isinstance(tree, int):
            return inside[tree]
        return Island(tree.rate, tuple(graft(child) for child in tree.children))

    assert {ranks[0] for ranks in hosts} == set(above.members())
    return graft(_island(level_out(above, depth)))
