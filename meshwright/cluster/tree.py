"""Nested groups of devices, such as a host, a rack or a pod, and the links that join the members of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from meshwright.cluster.collective_table import link_table
from meshwright.errors import ClusterError

MOST_TAPER = 2.0


@dataclass(frozen=True, slots=True)
class Link:
    """How one member reaches the other members of its group.

    `bandwidth` is bytes per second of one link in one direction; `count` links work in parallel. With `shared`
    the members do not have links of their own: all of them together have `count * bandwidth`. `efficiency`
    says, per collective, what fraction of the bandwidth it reaches. `taper` says how a large network falls short:
    among n members, each gets its bandwidth divided by (n / 2) ** taper. `jitter` says what waiting for each other
    adds: so many seconds for each byte and rank of a group that gathers or reduces. `measured` names a shipped table
    of measured collectives (`collective_table`), which then says what they take; at another bandwidth in proportion.
    """

    latency_s: float
    bandwidth: float
    count: int = 1
    shared: bool = False
    efficiency: tuple[tuple[str, float], ...] = ()
    taper: float = 0.0
    measured: str = ""
    jitter: float = 0.0

    @property
    def total_bandwidth(self) -> float:
        return self.bandwidth * self.count

    def kept_among(self, members: int) -> float:
        """The part of its bandwidth that a member keeps when so many members communicate."""
        return float((members / 2) ** -self.taper) if members > 2 else 1.0

    def verify(self, where: str) -> None:
        figures = {
            "latency_s": (self.latency_s, 0 <= self.latency_s < inf, "0 or more seconds"),
            "bandwidth": (self.bandwidth, 0 < self.bandwidth < inf, "more than 0 bytes per second"),
            "count": (self.count, self.count >= 1, "1 or more links"),
            "taper": (self.taper, 0 <= self.taper <= MOST_TAPER, f"from 0 to {MOST_TAPER:g}"),
            "jitter": (self.jitter, 0 <= self.jitter < inf, "0 or more seconds for a byte and rank"),
        }
        for name, (value, fine, expected) in figures.items():
            if not fine:
                raise ClusterError(f"{where}: {name} is {value}", expected)
        if self.measured:
            link_table(self.measured)
        for kind, fraction in self.efficiency:
            if not fraction > 0:
                raise ClusterError(f"{where}: efficiency of {kind} is {fraction}", "a positive fraction")


@dataclass(frozen=True, slots=True)
class Member:
    """`count` equal members of a group: devices (by name) or groups. `uplink` replaces the group's own link."""

    of: str | Group
    count: int = 1
    uplink: Link | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One instance of a level, for example a host: its members and the link each has to the others."""

    level: str
    link: Link
    members: tuple[Member, ...]

    @property
    def device_count(self) -> int:
        return sum(m.count * (1 if isinstance(m.of, str) else m.of.device_count) for m in self.members)

    def children(self) -> Iterator[tuple[str | Group, Link]]:
        """Every member on its own, with the link it has."""
        for member in self.members:
            for _ in range(member.count):
                yield member.of, member.uplink or self.link

    def levels(self) -> tuple[str, ...]:
        """Level names below and including this one, innermost first; every branch has the same (`verify`)."""
        below = next((m.of.levels() for m in self.members if isinstance(m.of, Group)), ())
        return (*below, self.level)


def describe_link(link: Link) -> str:
    many = f"{link.count} x " if link.count > 1 else ""
    shared = ", shared" if link.shared else ""
    taper = f", taper {link.taper:.3g}" if link.taper else ""
    taper += f", jitter {link.jitter * 1e15:.3g} fs per byte and rank" if link.jitter else ""
    return f"{many}{link.bandwidth / 1e9:.4g} GB/s each way, {link.latency_s * 1e6:.3g} us{shared}{taper}"


def merge_equal(members: list[Member]) -> tuple[Member, ...]:
    """Neighbours that are equal become one member with a count."""
    merged: list[Member] = []
    for member in members:
        if merged and (merged[-1].of, merged[-1].uplink) == (member.of, member.uplink):
            merged[-1] = Member(member.of, merged[-1].count + member.count, member.uplink)
        else:
            merged.append(member)
    return tuple(merged)
