"""The links of a level of a live job: one flow alone, all flows at once, and latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.cluster.detect.islands import Island
from meshwright.cluster.detect.probe import latency, rates
from meshwright.cluster.detect.structure import Probes
from meshwright.cluster.tree import Link

_MUCH_SLOWER = 2.0
_DIFFERENT = 1.25  # an uplink this far from the others' is kept apart
_OF_ONE_MEDIUM = 0.6  # members that together send less of what each sends alone share a medium

Source = tuple[str, str]


@dataclass(slots=True)
class Level:
    """One level being measured: its name, its islands as lists of children, each a list of ranks."""

    name: str
    islands: list[list[list[int]]]
    single: dict[int, float] = field(default_factory=dict)  # first rank of a child -> rate of one flow
    link: Link = field(default_factory=lambda: Link(0.0, 1e12))
    uplinks: dict[int, Link] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)  # first rank of an island -> a link unlike the others'

    @property
    def widest(self) -> list[list[int]]:
        return max(self.islands, key=len)


def levels_of(tree: Island, names: Sequence[str]) -> list[Level]:
    """Islands of each level, innermost first."""
    layers: list[list[Island]] = [[tree]]
    while isinstance(layers[-1][0].children[0], Island):
        layers.append([child for island in layers[-1] for child in island.children if isinstance(child, Island)])
    return [
        Level(name, [[_ranks(child) for child in island.children] for island in islands])
        for name, islands in zip(names, reversed(layers), strict=True)
    ]


def measure_links(level: Level, probes: Probes, slow: dict[int, float], innermost: bool) -> list[Source]:
    """Fills in the level's links; returns where the figures come from."""
    wide = level.widest
    if len(wide) < 2:
        return [(f"{level.name}.bandwidth", "assumption: nothing to measure, one member")]
    # Hosts of a kind are alike inside until the comparison below says otherwise; uplinks are measured one by one.
    _measure_singles(level, probes, [wide] if innermost else level.islands)
    delay = latency(probes.prober, (wide[0][0], wide[1][0]))
    usual = sorted(value for rank, value in level.single.items() if rank not in slow)
    single = usual[len(usual) // 2] if usual else max(level.single.values())
    level.link = _link(delay.value, single, _together(wide, probes), _apart(level, wide), wide)
    if innermost:
        _compare(level, probes)
    elif not level.link.shared:
        level.uplinks = {
            rank: Link(delay.value, value, level.link.count)
            for rank, value in level.single.items()
            if not single / _DIFFERENT < value < single * _DIFFERENT
        }
    spread = max((measured.spread for measured in probes.known.values()), default=0.0)
    return [
        *(_slow_ranks(level, slow) if innermost else []),
        (f"{level.name}.bandwidth", f"measured, spread of repeats up to {spread:.0%}"),
        (f"{level.name}.latency_s", f"measured, {delay}"),
    ]


def _slow_ranks(level: Level, slow: dict[int, float]) -> list[Source]:
    """A device whose link is slow within its host is said, not modelled: no plan can route around it."""
    inside = {rank: slow[rank] for rank in level.single if rank in slow}
    text = ", ".join(f"rank {rank} at {value / 1e9:.3g} GB/s" for rank, value in inside.items())
    return [(f"{level.name}.slow", text)] if inside else []


def _compare(level: Level, probes: Probes) -> None:
    """One flow in every innermost island at the same time: one much slower than the others has its own link."""
    pairs = [(children[0][0], children[1][0]) for children in level.islands if len(children) > 1]
    if len(pairs) < 2:
        return
    found = [measured.value for measured in rates(probes.prober, pairs)]
    typical = sorted(found)[len(found) // 2]
    for (first, _), value in zip(pairs, found, strict=True):
        if value * _MUCH_SLOWER < typical:
            link = level.link
            level.links[first] = Link(link.latency_s, link.bandwidth * value / typical, link.count, link.shared)


def _measure_singles(level: Level, probes: Probes, islands: list[list[list[int]]]) -> None:
    """Each child's rate: the best it showed towards any sibling, since the slower end decides a flow."""
    for children in islands:
        firsts = [ranks[0] for ranks in children] if len(children) > 1 else []
        for i, rank in enumerate(firsts):
            probes.rate(rank, firsts[(i + 1) % len(firsts)])
        for rank in firsts:
            level.single[rank] = max(
                measured.value for pair, measured in probes.known.items() if rank in pair and set(pair) <= set(firsts)
            )


def _together(children: list[list[int]], probes: Probes) -> list[float]:
    """Bytes per second each child sends while every child sends to the next with all its ranks."""
    pairs, senders = [], []
    for i, ranks in enumerate(children):
        following = children[(i + 1) % len(children)]
        for j, rank in enumerate(ranks):
            pairs.append((rank, following[j % len(following)]))
            senders.append(i)
    return [measured.value for measured in rates(probes.prober, pairs, senders)]


def _apart(level: Level, children: list[list[int]]) -> float:
    """What `_together` would add up to if every child had its own link: a flow gets what its slower end has."""
    alone = [level.single[ranks[0]] for ranks in children]
    return sum(min(mine, following) for mine, following in zip(alone, alone[1:] + alone[:1], strict=True))


def _link(latency_s: float, single: float, together: Sequence[float], apart: float, children: list[list[int]]) -> Link:
    """Parallel links if a child sends more with all its ranks than with one; shared if all together send little."""
    total = sum(together)
    if total < _OF_ONE_MEDIUM * apart:
        return Link(latency_s, max(total, single), shared=True)
    count = min(max(1, round(max(together) / single)), max(len(ranks) for ranks in children))
    return Link(latency_s, single, count)


def _ranks(child: Island | int) -> list[int]:
    return [child] if isinstance(child, int) else list(child.members())
