"""Mesh: an n-d logical view of some devices of a cluster; each Axis knows the links its groups use.

An axis of size n that runs through 8 devices of each of 4 hosts has two Hops: 8 ranks over the host's links and
4 hosts over the network. A hop's `bandwidth` is what *one rank* gets while every rank of the mesh communicates
along the same axis, so contention for a host's uplink is already in it. Where hosts differ, ranks of an axis make
different hops: the axis holds each kind, and a collective takes as long as the slowest of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from meshwright.cluster.collective_table import Line, link_table, measured_lines, reached
from meshwright.cluster.device import Device
from meshwright.cluster.frozen import AsJson, HashedOnce
from meshwright.errors import ClusterError

BACKENDS = ("nccl", "gloo")

FLAT = "*"  # joins the names of axes that act as one: "dp*tp"


@dataclass(frozen=True, slots=True)
class Hop:
    """One level that a group crosses: `size` members there, and one rank's latency and bytes per second.

    `behind` is how many ranks of the group sit behind the member; 0 says as many as the sizes of the hops before make.
    shared: the members have one link together, as processes of one host have. measured: the table of measured
    collectives that says what they take over this link. jitter: what waiting for each other adds, in seconds for each
    byte and rank of the group.
    """

    level: str
    size: int
    latency_s: float
    bandwidth: float
    efficiency: tuple[tuple[str, float], ...] = ()
    behind: int = 0
    shared: bool = False
    measured: str = ""
    jitter: float = 0.0

    def rate(self, kind: str) -> float:
        """Bytes per second that a collective of this kind reaches: measured links know it per collective."""
        for name, fraction in self.efficiency:
            if name == kind:
                return self.bandwidth * fraction
        return self.bandwidth * (reached(self.measured, kind, self.size) if self.measured else 1.0)

    def measured_lines(self, kind: str) -> tuple[Line, ...]:
        """Seconds per byte and seconds of a collective among these members alone, by the table."""
        slower = link_table(self.measured)["bandwidth"] / self.bandwidth
        lines = measured_lines(self.measured, kind, self.size)
        return tuple((s_per_byte * slower, fixed_s) for s_per_byte, fixed_s in lines)


def ranks_behind(hops: tuple[Hop, ...]) -> list[int]:
    """For every hop, how many ranks of the group sit behind one member."""
    found: list[int] = []
    product = 1
    for hop in hops:
        found.append(hop.behind or product)
        product = found[-1] * hop.size
    return found


@dataclass(frozen=True, slots=True)
class Axis(HashedOnce):
    """A named mesh axis: its size and, innermost first, the hops that its ranks make.

    Where ranks differ, `hops` are those of the slowest and `others` those of every other kind. `overhead_s` is what
    starting any collective costs, whatever its size or group.
    """

    name: str
    size: int
    hops: tuple[Hop, ...]
    backend: str = "nccl"
    overhead_s: float = 0.0
    others: tuple[tuple[Hop, ...], ...] = ()

    __hash__ = HashedOnce.__hash__

    @property
    def kinds(self) -> tuple[tuple[Hop, ...], ...]:
        """The hops of every kind of rank, the slowest first."""
        return (self.hops, *self.others)

    def __str__(self) -> str:
        kinds = "; or ".join(
            ", ".join(f"{hop.size} by {hop.level} {hop.bandwidth / 1e9:.4g} GB/s" for hop in hops)
            for hops in self.kinds
        )
        return f"{self.name}={self.size}" + (f" ({kinds})" if kinds else "")


class _SizedOnce(HashedOnce):
    """Keeps the sizes of its axes: they are asked for at every step of a search."""

    __slots__ = ("_sizes",)
    _sizes: tuple[int, ...]
    axes: tuple[Axis, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        try:
            return self._sizes
        except AttributeError:
            found = tuple(axis.size for axis in self.axes)
            object.__setattr__(self, "_sizes", found)
            return found


@dataclass(frozen=True, slots=True)
class Mesh(_SizedOnce, AsJson):
    """Axes, outermost first; `ranks` are device numbers in the cluster, row-major over the axes.

    `flat` holds, for each set of two or more axes, the axis they form together: collectives over several mesh
    axes at once run on these.
    """

    axes: tuple[Axis, ...]
    device: Device
    ranks: tuple[int, ...]
    flat: tuple[Axis, ...] = ()

    __hash__ = HashedOnce.__hash__
    __eq__ = HashedOnce.equal_once

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @property
    def world_size(self) -> int:
        return prod(self.sizes)

    def axis(self, name: str) -> Axis:
        """The axis of this name; `"dp*tp"` is the flattened axis of both."""
        for axis in self.axes + self.flat:
            if axis.name == name:
                return axis
        raise ClusterError(f"mesh has no axis {name!r}", f"one of {[a.name for a in self.axes + self.flat]}")

    def overlaps_compute(self, axis: Axis) -> bool:
        """Whether collectives over this axis may run while devices compute. What processes of one host send each other
        is carried by the very cores that compute."""
        return self.device.kind != "cpu" or not all(hop.shared for hop in axis.hops)

    @property
    def any_overlap(self) -> bool:
        """Whether parameters are gathered, and gradients reduced, while devices compute."""
        return any(axis.size > 1 and self.overlaps_compute(axis) for axis in self.axes)

    def renamed(self, names: tuple[str, ...]) -> Mesh:
        """The same mesh with other axis names, flattened axes included."""
        new = dict(zip(self.names, names, strict=True))
        flat = tuple(replace(axis, name=FLAT.join(new[part] for part in axis.name.split(FLAT))) for axis in self.flat)
        axes = tuple(replace(axis, name=new[axis.name]) for axis in self.axes)
        return replace(self, axes=axes, flat=flat)

    def coordinates(self, position: int) -> tuple[int, ...]:
        """Row-major coordinates of the rank at `position` within this mesh."""
        found = []
        for size in reversed(self.sizes):
            found.append(position % size)
            position //= size
        return tuple(reversed(found))

    def __iter__(self) -> Iterator[Axis]:
        return iter(self.axes)

    def __str__(self) -> str:
        return f"Mesh[{'; '.join(map(str, self.axes))}] of {self.device.name}"

    def verify(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise ClusterError(f"mesh axes {self.names} repeat a name", "different names")
        for axis in self.axes:
            if FLAT in axis.name or not axis.name:
                raise ClusterError(f"mesh axis name {axis.name!r}", f"a name without {FLAT!r}")
            if axis.size < 1:
                raise ClusterError(f"mesh axis {axis.name} has size {axis.size}", "1 or more")
        for axis in self.axes + self.flat:
            if axis.backend not in BACKENDS:
                raise ClusterError(f"mesh axis {axis.name}: backend {axis.backend!r}", f"one of {BACKENDS}")
            for hop in (hop for hops in axis.kinds for hop in hops):
                if hop.size < 2 or hop.latency_s < 0 or not hop.bandwidth > 0 or hop.behind < 0:
                    given = f"mesh axis {axis.name}: its hop by {hop.level} has size {hop.size}, "
                    given += f"latency_s {hop.latency_s}, bandwidth {hop.bandwidth}, behind {hop.behind}"
                    expected = "size 2 or more, positive bandwidth, no negative latency_s or behind"
                    raise ClusterError(given, expected, "correct it")
                for kind, fraction in hop.efficiency:
                    if not fraction > 0:
                        given = f"mesh axis {axis.name}: the efficiency of {kind} by {hop.level} is {fraction}"
                        raise ClusterError(given, "more than 0", "correct it")
        if len(self.ranks) != self.world_size or len(set(self.ranks)) != len(self.ranks):
            given = f"ranks are {list(self.ranks)} on axes of {'x'.join(map(str, self.sizes))}"
            raise ClusterError(given, f"{self.world_size} different ranks", "correct the ranks or the axes' sizes")
        self.device.verify()
