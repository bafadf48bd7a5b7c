"""Seconds of sending a value from the mesh of one stage to that of another.

`route_s` prices the slices that the runtime sends (`layout.crossmesh`). `least_s` is its closed form with all bytes
spread evenly over the ranks, for searches and for meshes so large that listing pairs of ranks is impractical.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshwright.caches import CACHES
from meshwright.cluster import Mesh
from meshwright.layout import Layout
from meshwright.layout.crossmesh import Pair, Side, route
from meshwright.plan import Plan

MOST_PAIRS = 1 << 12
"""Ranks of one mesh times ranks of the other, up to which slices are listed one by one."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The link of one rank: latency in seconds, bandwidth in bytes per second."""

    latency_s: float
    bandwidth: float


@CACHES.memoized(maxsize=1 << 10)
def inner_rate(mesh: Mesh) -> Rate:
    """The rate between ranks of one mesh, over its slowest links."""
    hops = [hop for axis in (*mesh.axes, *mesh.flat) for hops in axis.kinds for hop in hops]
    if not hops:
        return Rate(0.0, float("inf"))
    return Rate(max(hop.latency_s for hop in hops), min(hop.rate("send") for hop in hops))


def hand_over_s(
    shape: tuple[int, ...], itemsize: int, source: tuple[Mesh, Layout], target: tuple[Mesh, Layout], between: Rate
) -> float:
    """Seconds of sending a value of this shape from one mesh and layout to another."""
    if source[0].world_size * target[0].world_size <= MOST_PAIRS:
        return route_s(shape, itemsize, source, target, between)
    bytes_ = itemsize * prod(shape)
    pieces = target[1].shard_factor(target[0].sizes)
    return least_s(bytes_, source[0].world_size, target[0].world_size, pieces, between, inner_rate(target[0]))


_known: dict[object, float] = CACHES.own({})
MOST_KNOWN = 1 << 14
"""Seconds that are remembered: many pairs of stages are alike."""


def route_s(
    shape: tuple[int, ...], itemsize: int, source: tuple[Mesh, Layout], target: tuple[Mesh, Layout], between: Rate
) -> float:
    """Seconds of the cheapest route. They do not depend on which ranks the meshes have, only on which they share."""
    (mesh, layout), (other, wanted) = source, target
    places = {rank: place for place, rank in enumerate(mesh.ranks)}
    shared = tuple((places[rank], place) for place, rank in enumerate(other.ranks) if rank in places)
    inner = inner_rate(other)
    key = shape, itemsize, mesh.sizes, layout, other.sizes, wanted, shared, between, inner
    if key not in _known:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        pair = pair_of(frozenset(mesh.ranks), between, inner)
        _known[key] = route(shape, Side(*source), Side(*target), itemsize, pair).seconds(itemsize, pair)
    return _known[key]


def pair_of(sources: frozenset[int], between: Rate, inner: Rate) -> Pair:
    def pair(source: int, target: int) -> tuple[float, float]:
        rate = between if source in sources else inner
        return rate.latency_s, rate.bandwidth

    return pair


def least_s(bytes_: float, senders: int, takers: int, pieces: int, between: Rate, inner: Rate) -> float:
    """Closed form. pieces: number of pieces at the target; ranks with the same piece may share its transfer."""
    alike = takers // pieces
    direct_s = between.latency_s + max(bytes_ / pieces, bytes_ * alike / senders) / between.bandwidth
    if alike == 1:
        return direct_s
    first_s = between.latency_s + bytes_ / min(senders, takers) / between.bandwidth
    second_s = (alike - 1) * (inner.latency_s + bytes_ / takers / inner.bandwidth)
    return min(direct_s, first_s + second_s)


def rates(plan: Plan) -> dict[tuple[int, int], Rate]:
    """Rates between physical stages, by their numbers in `plan.groups`."""
    return {(link.source, link.target): Rate(link.latency_s, link.bandwidth) for link in plan.links}


def keeps_sent(mesh: Mesh) -> bool:
    """Whether a stage on this mesh keeps what it sends until the step is over, as over gloo."""
    return mesh.device.kind == "cpu"
