"""The mesh axes of a configuration: ranks are numbered with tp innermost, then cp, dp and pp, as Megatron does.

Where hosts are alike every stage has the first one's axes. Where they differ each stage and each data-parallel replica
has its own: the devices that it computes on, its axes of tp and cp, its link to the next stage.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshwright.caches import CACHES
from meshwright.cluster import Axis, Cluster, Mesh
from meshwright.cluster.bind import bind_mesh
from meshwright.cluster.tree import Group
from meshwright.configuration.configuration import Configuration
from meshwright.price.segment import crosses

AXES = ("pp", "dp", "cp", "tp")


@CACHES.memoized(maxsize=512)
def _mesh(cluster: Cluster, shape: tuple[int, ...], names: tuple[str, ...], first: int = 0) -> Mesh:
    ranks = range(first, first + prod(shape))
    return cluster.mesh(shape, names, ranks)


@CACHES.memoized(maxsize=512)
def _part(cluster: Cluster, shape: tuple[int, ...], names: tuple[str, ...], ranks: tuple[int, ...], of: range) -> Mesh:
    """A mesh of these ranks while all ranks of a range communicate."""
    chosen = set(ranks)
    return bind_mesh(cluster, shape, names, ranks, tuple(rank for rank in of if rank not in chosen))


def alike(group: Group) -> bool:
    """Whether all devices below are of one type and have equal links."""
    first = group.members[0]
    same = all((one.of, one.uplink) == (first.of, first.uplink) for one in group.members)
    return same and (isinstance(first.of, str) or alike(first.of))


class Meshes:
    """Axes of one stage of a configuration on one cluster; replica: of which data-parallel one, where they differ."""

    def __init__(self, cluster: Cluster, given: Configuration, stage: int = 0, replica: int | None = None) -> None:
        self.cluster, self.given, self.replica = cluster, given, replica
        self.stage = given.dp * given.cp * given.tp
        first = stage * self.stage
        self._full = self._own = _mesh(cluster, (given.dp, given.cp, given.tp), AXES[1:], first)
        if replica is not None:
            every = range(first, first + self.stage)
            self._own = _part(cluster, (1, given.cp, given.tp), AXES[1:], self._ranks(stage), every)
        self.device = self._own.device
        self.data = self._alone(self._full.axis("dp*cp"))
        shape = (given.dp * given.cp // given.ep, given.ep, given.tp)
        self._routed = _mesh(cluster, shape, ("dp", "ep", "tp"), first) if given.ep > 1 else self._full
        self.experts = self._alone(self._routed.axis("dp")) if given.ep > 1 else self.data

    def _ranks(self, stage: int) -> tuple[int, ...]:
        """Of this replica in a stage."""
        each = self.given.cp * self.given.tp
        first = stage * self.stage + (self.replica or 0) * each
        return tuple(range(first, first + each))

    def _alone(self, axis: Axis) -> Mesh:
        """A mesh of this axis alone: the ranks over which parameters are kept."""
        return Mesh((replace(axis, name="dp"),), self.device, tuple(range(axis.size)))

    def axis(self, name: str) -> Axis:
        return self._routed.axis("ep") if name == "ep" else self._own.axis(name)

    def shares_links(self, name: str) -> bool:
        """Whether collectives over this axis use links that parameters use too."""
        return bool(crosses(self.axis(name)) & crosses(self.data.axes[0]))

    def hosts_of_axis(self, name: str) -> int:
        """How many members of the cluster's outermost level a group of this axis is spread over; one host is one."""
        level = self.cluster.root.level
        sizes = (hop.size for hops in self.axis(name).kinds for hop in hops if self._hosts and hop.level == level)
        return max(sizes, default=1)

    @property
    def between_hosts(self) -> bool:
        """Whether some stage hands over to one on another host."""
        stages = range(self.given.pp - 1)
        return self._hosts and any(self.cluster.root.level in crosses(self.wire(stage)) for stage in stages)

    @property
    def _hosts(self) -> bool:
        """Whether the cluster has several."""
        return any(isinstance(member.of, Group) for member in self.cluster.root.members)

    def wire(self, stage: int) -> Axis:
        """Between a stage and the next one: all their ranks hand over at once."""
        names = ("pp", "rest")
        if self.replica is None:
            return _mesh(self.cluster, (2, self.stage), names, stage * self.stage).axis("pp")
        ranks = (*self._ranks(stage), *self._ranks(stage + 1))
        every = range(stage * self.stage, (stage + 2) * self.stage)
        return _part(self.cluster, (2, len(ranks) // 2), names, ranks, every).axis("pp")
