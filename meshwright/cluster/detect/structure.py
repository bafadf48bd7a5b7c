"""How the ranks of a live job nest: hosts by name, islands within them and among them by rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.cluster.detect.islands import Island, find_islands, level_out, pull_in_slow_members
from meshwright.cluster.detect.probe import Measured, Prober, rate

_CPU_VARIES, _GPU_VARIES = 4.0, 2.0
_OUTER_NAMES = {0: (), 1: ("pod",), 2: ("rack", "pod")}


@dataclass(slots=True)
class Probes:
    """Rates of single flows, each pair measured when first asked for."""

    prober: Prober
    known: dict[tuple[int, int], Measured] = field(default_factory=dict)

    def rate(self, a: int, b: int) -> float:
        key = (min(a, b), max(a, b))
        return self.known[key].value if key in self.known else self.again(a, b)

    def again(self, a: int, b: int) -> float:
        """The better of what it was and what it is now."""
        key = (min(a, b), max(a, b))
        found = rate(self.prober, key)
        self.known[key] = max(found, self.known.get(key, found), key=lambda measured: measured.value)
        return self.known[key].value


@dataclass(frozen=True, slots=True)
class Structure:
    """`tree`: ranks, each at the same depth. `names`: of the levels, innermost first. Rates of what is slow on its own:
    devices within their hosts (`slow_inside`); hosts and racks, by first rank (`slow_outside`).
    """

    tree: Island
    names: tuple[str, ...]
    slow_inside: dict[int, float]
    slow_outside: dict[int, float]


def hosts_of(prober: Prober) -> list[list[int]]:
    by_name: dict[str, list[int]] = {}
    for rank, info in enumerate(prober.ranks):
        by_name.setdefault(info.host, []).append(rank)
    return list(by_name.values())


def structure(probes: Probes, device_of: Sequence[str]) -> Structure:
    hosts = hosts_of(probes.prober)
    inside, slow_inside = _inside(hosts, probes, device_of)
    slow_outside: dict[int, float] = {}
    network = find_islands([ranks[0] for ranks in hosts], probes.rate, again=probes.again)
    names = ("host",) if max(tree.depth for tree in inside.values()) == 1 else ("island", "host")
    if not isinstance(network, Island):
        return Structure(inside[hosts[0][0]], names, slow_inside, slow_outside)
    above, slow_outside = pull_in_slow_members(network)
    outer = _OUTER_NAMES.get(above.depth, (*(f"level{i}" for i in range(1, above.depth)), "pod"))
    return Structure(_grafted(above, inside), (*names, *outer), slow_inside, slow_outside)


def _inside(
    hosts: list[list[int]], probes: Probes, device_of: Sequence[str]
) -> tuple[dict[int, Island], dict[int, float]]:
    """Islands within each host, by its first rank: found on one host of each kind, copied to its likes."""
    found: dict[int, Island] = {}
    models: dict[tuple[str, ...], tuple[Island, list[int]]] = {}
    slow: dict[int, float] = {}
    for ranks in hosts:
        kind = tuple(device_of[rank] for rank in ranks)
        if kind in models:
            model, originals = models[kind]
            found[ranks[0]] = _renamed(model, dict(zip(originals, ranks, strict=True)))
            continue
        # Within a host, memory and scheduling make rates vary; NVLink against PCIe is a far larger factor.
        varies = _CPU_VARIES if probes.prober.ranks[ranks[0]].kind == "cpu" else _GPU_VARIES
        tree = find_islands(ranks, probes.rate, varies, probes.again)
        if isinstance(tree, Island):
            tree, slow_here = pull_in_slow_members(tree)
            slow |= slow_here
        else:
            tree = Island(1e12, (tree,))
        models[kind] = (tree, ranks)
        found[ranks[0]] = tree
    depth = max(tree.depth for tree in found.values())
    return {first: _island(level_out(tree, depth)) for first, tree in found.items()}, slow


def _island(tree: Island | int) -> Island:
    assert isinstance(tree, Island)
    return tree


def _renamed(tree: Island, names: dict[int, int]) -> Island:
    return Island(tree.rate, tuple(names[c] if isinstance(c, int) else _renamed(c, names) for c in tree.children))


def _grafted(above: Island, inside: dict[int, Island]) -> Island:
    """The network's tree with each host's own tree in place of its first rank."""

    def graft(tree: Island | int) -> Island:
        if isinstance(tree, int):
            return inside[tree]
        return Island(tree.rate, tuple(graft(child) for child in tree.children))

    assert set(inside) == set(above.members())
    return graft(_island(level_out(above, above.depth)))
