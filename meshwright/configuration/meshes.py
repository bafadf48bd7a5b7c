"""The mesh axes of a configuration: ranks are numbered with tp innermost, then cp, dp and pp, as Megatron does."""

from __future__ import annotations

from dataclasses import replace

from meshwright.caches import CACHES
from meshwright.cluster import Axis, Cluster, Mesh
from meshwright.cluster.tree import Group
from meshwright.configuration.configuration import Configuration
from meshwright.price.segment import crosses

AXES = ("pp", "dp", "cp", "tp")


@CACHES.memoized(maxsize=512)
def _mesh(cluster: Cluster, shape: tuple[int, ...], names: tuple[str, ...], first: int = 0) -> Mesh:
    ranks = range(first, first + _product(shape))
    return cluster.mesh(shape, names, ranks)


def _product(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


class Meshes:
    """Axes of one configuration on one cluster."""

    def __init__(self, cluster: Cluster, given: Configuration) -> None:
        self.cluster, self.given = cluster, given
        self.stage = given.dp * given.cp * given.tp
        self._full = _mesh(cluster, (given.dp, given.cp, given.tp), AXES[1:])
        self.device = self._full.device
        self.data = self._alone(self._full.axis("dp*cp"))
        outer = given.dp * given.cp // given.ep
        self._routed = _mesh(cluster, (outer, given.ep, given.tp), ("dp", "ep", "tp")) if given.ep > 1 else self._full
        self.experts = self._alone(self._routed.axis("dp")) if given.ep > 1 else self.data

    def _alone(self, axis: Axis) -> Mesh:
        """A mesh of this axis alone: the ranks over which parameters are kept."""
        return Mesh((replace(axis, name="dp"),), self._full.device, tuple(range(axis.size)))

    def axis(self, name: str) -> Axis:
        return self._routed.axis("ep") if name == "ep" else self._full.axis(name)

    def shares_links(self, name: str) -> bool:
        """Whether collectives over this axis use links that parameters use too."""
        return bool(crosses(self.axis(name)) & crosses(self.data.axes[0]))

    def hosts_of_axis(self, name: str) -> int:
        """How many members of the cluster's outermost level a group of this axis is spread over."""
        level = self.cluster.root.level
        return max((hop.size for hops in self.axis(name).kinds for hop in hops if hop.level == level), default=1)

    @property
    def between_hosts(self) -> bool:
        """Whether some stage hands over to one on another host."""
        inner = any(isinstance(member.of, Group) for member in self.cluster.root.members)
        stages = range(self.given.pp - 1)
        return inner and any(self.cluster.root.level in crosses(self.wire(stage)) for stage in stages)

    def wire(self, stage: int) -> Axis:
        """Between a stage and the next one: all their ranks hand over at once."""
        return _mesh(self.cluster, (2, self.stage), ("pp", "rest"), stage * self.stage).axis("pp")
