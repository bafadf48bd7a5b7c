"""Seconds of a collective on a mesh axis: alpha-beta per algorithm, the best the backend has.

With n ranks, B bytes, hops innermost first, at hop h: latency a_h, bytes per second of one rank b_h, s_h members
and m_h = s_0 ... s_(h-1) ranks of the group below one member. What B counts is fixed per kind:

    all_reduce: the tensor       all_gather: the output      reduce_scatter: the input
    all_to_all: the local input  broadcast, send: the tensor

A *ring* passes every hop once per member, and a group may use all that its m_h ranks get of an uplink, so its
rate is min_h(m_h b_h); each of its steps waits for the slowest hop:

    ring gather = (n-1)/n B / min_h(m_h b_h) + (n-1) max_h(a_h)         (scatter alike; a reduction is both)

*Hierarchical* gathers at each hop only what is missing there, on shrinking pieces:

    hierarchical gather = sum_h (s_h-1)/s_h (B / m_h) / b_h + (s_h-1) a_h

Every collective pays the axis's `overhead_s` once, which is why one flattened collective beats two.
A *tree* halves the distance each step: all_reduce = 2 B / min_h(m_h b_h) + 2 sum_h ceil(log2 s_h) a_h.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

from meshwright.cluster.mesh import Axis, Hop
from meshwright.errors import ClusterError

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")


def collective_s(kind: str, n_bytes: float, axis: Axis) -> float:
    """Seconds for one collective of `kind` while all groups of the axis run it at the same time."""
    if kind not in KINDS:
        raise ClusterError(f"collective {kind!r}", f"one of {KINDS}")
    if axis.size == 1 or not axis.hops:
        return 0.0
    return axis.overhead_s + min(algorithm(n_bytes, axis, kind) for algorithm in _algorithms(kind, axis.backend))


def _algorithms(kind: str, backend: str) -> tuple[Callable[[float, Axis, str], float], ...]:
    if backend == "gloo":
        return _GLOO[kind]
    return _NCCL[kind]


def _ring_rate(axis: Axis, kind: str) -> float:
    below, rates = 1, []
    for hop in axis.hops:
        rates.append(below * hop.rate(kind))
        below *= hop.size
    return min(rates)


def _ring(n_bytes: float, axis: Axis, kind: str) -> float:
    n = axis.size
    slowest_s = max(hop.latency_s for hop in axis.hops)
    return (n - 1) / n * n_bytes / _ring_rate(axis, kind) + (n - 1) * slowest_s


def _ring_twice(n_bytes: float, axis: Axis, kind: str) -> float:
    return 2 * _ring(n_bytes, axis, kind)


def _one_hop(n_bytes: float, hop: Hop, kind: str) -> float:
    return (hop.size - 1) / hop.size * n_bytes / hop.rate(kind) + (hop.size - 1) * hop.latency_s


def _hierarchical(n_bytes: float, axis: Axis, kind: str) -> float:
    """A scatter from the innermost hop outwards (a gather is the same backwards): pieces shrink by s_h."""
    total_s, piece_bytes = 0.0, n_bytes
    for hop in axis.hops:
        total_s += _one_hop(piece_bytes, hop, kind)
        piece_bytes /= hop.size
    return total_s


def _hierarchical_twice(n_bytes: float, axis: Axis, kind: str) -> float:
    return 2 * _hierarchical(n_bytes, axis, kind)


def _tree_latency_s(axis: Axis) -> float:
    return sum(ceil(log2(hop.size)) * hop.latency_s for hop in axis.hops)


def _tree_all_reduce(n_bytes: float, axis: Axis, kind: str) -> float:
    return 2 * n_bytes / _ring_rate(axis, kind) + 2 * _tree_latency_s(axis)


def _pipelined_broadcast(n_bytes: float, axis: Axis, kind: str) -> float:
    return n_bytes / _ring_rate(axis, kind) + _tree_latency_s(axis)


def _binomial_broadcast(n_bytes: float, axis: Axis, kind: str) -> float:
    return sum(ceil(log2(hop.size)) * (hop.latency_s + n_bytes / hop.rate(kind)) for hop in axis.hops)


def _exchange_s(n_bytes: float, axis: Axis, kind: str) -> float:
    """Bytes of an all-to-all: of B local bytes, the part for ranks outside the m_h nearest crosses hop h.

    The hops are different wires and work at the same time, so the slowest decides.
    """
    below, slowest_s = 1, 0.0
    for hop in axis.hops:
        crossing_bytes = max(0.0, 1 - below / axis.size) * n_bytes
        slowest_s = max(slowest_s, crossing_bytes / hop.rate(kind))
        below *= hop.size
    return slowest_s


def _pairwise(n_bytes: float, axis: Axis, kind: str) -> float:
    """All-to-all with one peer after the other."""
    return _exchange_s(n_bytes, axis, kind) + (axis.size - 1) * max(hop.latency_s for hop in axis.hops)


def _grouped(n_bytes: float, axis: Axis, kind: str) -> float:
    """All-to-all with all sends in flight at once: latencies overlap as in a tree."""
    return _exchange_s(n_bytes, axis, kind) + _tree_latency_s(axis)


def _send(n_bytes: float, axis: Axis, kind: str) -> float:
    """One rank to its neighbour over the axis's outermost hop: the one a pipeline boundary crosses."""
    hop = axis.hops[-1]
    return hop.latency_s + n_bytes / hop.rate(kind)


_NCCL: dict[str, tuple[Callable[[float, Axis, str], float], ...]] = {
    "all_reduce": (_ring_twice, _hierarchical_twice, _tree_all_reduce),
    "all_gather": (_ring, _hierarchical),
    "reduce_scatter": (_ring, _hierarchical),
    "all_to_all": (_grouped,),
    "broadcast": (_pipelined_broadcast,),
    "send": (_send,),
}

# gloo has rings only, and its reduce-scatter moves as many bytes as its all-reduce (measured: 1.5 tensors at 4).
_GLOO: dict[str, tuple[Callable[[float, Axis, str], float], ...]] = {
    "all_reduce": (_ring_twice,),
    "all_gather": (_ring,),
    "reduce_scatter": (_ring_twice,),
    "all_to_all": (_pairwise,),
    "broadcast": (_binomial_broadcast,),
    "send": (_send,),
}
