"""Seconds of a collective on a mesh axis: alpha-beta per algorithm, the best of those the backend has.

With n ranks, B bytes, hops innermost first, at hop h: latency a_h, bytes per second of one rank b_h, s_h members
and m_h = s_0 ... s_(h-1) ranks of the group behind one member. What B counts is fixed per kind:

    all_reduce: the tensor       all_gather: the output      reduce_scatter: the input
    all_to_all: the local input  broadcast, send: the tensor

*Ring* (`_ring`). A ring passes every hop once per member, and a group may use all that its m_h ranks get of an
uplink, so its rate is w = min_h(m_h b_h). Of its n-1 steps, k_h = n/m_h - n/m_(h+1) cross hop h at most:

    gather = (n-1)/n B/w + sum_h k_h a_h            scatter alike; an all-reduce is a scatter and a gather

gloo's ring moves in lockstep (`_lockstep_ring`): every step waits for the slowest hop, (n-1) max_h a_h.

*Tree* (`_double_tree`): reduce inside a member, up and down a tree across members, spread inside again, all of it
pipelined in small pieces, so that hops work at the same time and the slowest decides. Two trees carry half each and
a member is inner in one and a leaf in the other: it sends t B in all, t = 2 (two halves to its children, and half up
each tree); of two members each is the root of one tree and the leaf of the other, so they only swap halves, t = 1:

    all-reduce = max_h t_h (B/m_h)/b_h + 2 sum_h ceil(log2 s_h) a_h             t_h = 1 if s_h = 2 else 2

Fewer steps than a ring, so it wins when B is small; and half a ring's bytes between two hosts, whatever B is.

*Measured* (`Hop.measured`). Where a group stays inside one host whose collectives were measured, the table's lines are
the price (`collective_table`): they hold protocols, algorithms and the start of a collective.

*Jitter* (`Hop.jitter`). Ranks that gather or reduce wait for each other at every piece. A rank is late now and then,
and the more ranks there are the more often one of them is: each byte takes j_h (s_h - 2) m_h seconds more for each pass
over the ranks, nothing between two hosts. It is taken to grow no further than up to the 512 ranks it was fitted on.

NCCL sends small messages by a protocol with short latencies and a low rate (`_PROTOCOLS`); the best of both counts.
Where hosts differ, every kind of rank has hops, and m_h, of its own, and an algorithm takes as long as the slowest
kind: the most per byte, and the most latency. So another host never makes a collective cheaper.
Every collective pays the axis's `overhead_s` once, which is why one flattened collective beats two.
Each formula grows with B, and with n inside one level; so does their minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf, log2

from meshwright.caches import CACHES
from meshwright.cluster.collective_table import Line
from meshwright.cluster.mesh import Axis, Hop, ranks_behind
from meshwright.errors import ClusterError

_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
MOST_JITTER = 512
"""Ranks up to which waiting for each other is known to grow with their number."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")

Algorithm = Callable[[Axis, str], Line]


def collective_s(kind: str, n_bytes: float, axis: Axis) -> float:
    """Seconds for one collective of `kind` while all groups of the axis run it at the same time."""
    try:
        fine = 0 <= n_bytes < inf
    except TypeError:
        fine = False
    if not fine:
        raise ClusterError(f"a collective of {n_bytes!r} bytes", "a number, 0 or more")
    return min(fixed_s + s_per_byte * n_bytes for s_per_byte, fixed_s in collective_lines(kind, axis))


@CACHES.memoized(maxsize=1 << 14)
def collective_lines(kind: str, axis: Axis) -> tuple[Line, ...]:
    """What each algorithm and protocol takes, as (seconds per byte, seconds): the least of them is the price."""
    if kind not in KINDS:
        raise ClusterError(f"collective {kind!r}", f"one of {KINDS}")
    if not isinstance(axis, Axis):
        raise ClusterError(f"a collective over {axis!r}", "an Axis", "write mesh.axis(name)")
    if axis.size == 1 or not axis.hops:
        return ((0.0, 0.0),)
    if len(axis.hops) == 1 and axis.hops[0].measured and axis.backend == "nccl" and not axis.others:
        return axis.hops[0].measured_lines(kind)
    algorithms = (_GLOO if axis.backend == "gloo" else _NCCL)[kind]
    waits = _PASSES.get(kind, 0) * max(map(_jitter, axis.kinds))
    return tuple(
        (s_per_byte * slower + waits, axis.overhead_s + latency_s * latency_share)
        for s_per_byte, latency_s in (_slowest(algorithm, axis, kind) for algorithm in algorithms)
        for slower, latency_share in _PROTOCOLS[axis.backend]
    )


def _jitter(hops: tuple[Hop, ...]) -> float:
    return max(
        hop.jitter * min(MOST_JITTER, behind * (hop.size - 2))
        for hop, behind in zip(hops, ranks_behind(hops), strict=True)
    )


def _slowest(algorithm: Algorithm, axis: Axis, kind: str) -> Line:
    """What the algorithm takes on the slowest kind of rank, per byte and in latency."""
    if not axis.others:
        return algorithm(axis, kind)
    lines = [algorithm(replace(axis, hops=hops, others=()), kind) for hops in axis.kinds]
    return max(s_per_byte for s_per_byte, _ in lines), max(latency_s for _, latency_s in lines)


def _rate(axis: Axis, kind: str) -> float:
    """Bytes per second of a ring or tree through all hops."""
    return min(behind * hop.rate(kind) for hop, behind in zip(axis.hops, ranks_behind(axis.hops), strict=True))


def _ring(axis: Axis, kind: str) -> Line:
    members = [axis.size / behind for behind in ranks_behind(axis.hops)]
    steps = [here - above for here, above in zip(members, [*members[1:], 1.0], strict=True)]
    latency_s = sum(count * hop.latency_s for count, hop in zip(steps, axis.hops, strict=True))
    return (axis.size - 1) / axis.size / _rate(axis, kind), latency_s


def _lockstep_ring(axis: Axis, kind: str) -> Line:
    slowest_s = max(hop.latency_s for hop in axis.hops)
    return (axis.size - 1) / axis.size / _rate(axis, kind), (axis.size - 1) * slowest_s


def _twice(algorithm: Algorithm) -> Algorithm:
    def both_ways(axis: Axis, kind: str) -> Line:
        s_per_byte, latency_s = algorithm(axis, kind)
        return 2 * s_per_byte, 2 * latency_s

    return both_ways


def _steps(size: int) -> int:
    return ceil(log2(size))


def _tree_latency_s(axis: Axis) -> float:
    return sum(_steps(hop.size) * hop.latency_s for hop in axis.hops)


def _tree(axis: Axis, kind: str) -> Line:
    """A broadcast in a pipeline of small pieces."""
    return 1 / _rate(axis, kind), _tree_latency_s(axis)


def _double_tree(axis: Axis, kind: str) -> Line:
    """An all-reduce up and down two trees that share the bytes; what a member sends is in the module's text."""
    hops = zip(axis.hops, ranks_behind(axis.hops), strict=True)
    slowest = max((1 if hop.size == 2 else 2) / behind / hop.rate(kind) for hop, behind in hops)
    return slowest, 2 * _tree_latency_s(axis)


def _binomial(axis: Axis, kind: str) -> Line:
    """A broadcast whose every step sends the whole tensor."""
    return sum(_steps(hop.size) / hop.rate(kind) for hop in axis.hops), _tree_latency_s(axis)


def _exchange(axis: Axis, kind: str) -> float:
    """Seconds per byte of an all-to-all: of the local bytes, the part for ranks outside the m_h nearest crosses hop h.

    The hops are different wires and work at the same time, so the slowest decides.
    """
    hops = zip(axis.hops, ranks_behind(axis.hops), strict=True)
    return max((1 - behind / axis.size) / hop.rate(kind) for hop, behind in hops)


def _pairwise(axis: Axis, kind: str) -> Line:
    """All-to-all with one peer after the other."""
    return _exchange(axis, kind), (axis.size - 1) * max(hop.latency_s for hop in axis.hops)


def _grouped(axis: Axis, kind: str) -> Line:
    """All-to-all with all sends in flight at once: latencies overlap as in a tree."""
    return _exchange(axis, kind), _tree_latency_s(axis)


def _send(axis: Axis, kind: str) -> Line:
    """One rank to its neighbour over the axis's outermost hop: the one a pipeline boundary crosses."""
    hop = axis.hops[-1]
    return 1 / hop.rate(kind), hop.latency_s


_NCCL: dict[str, tuple[Algorithm, ...]] = {
    "all_reduce": (_twice(_ring), _double_tree),
    "all_gather": (_ring,),
    "reduce_scatter": (_ring,),
    "all_to_all": (_grouped,),
    "broadcast": (_tree,),
    "send": (_send,),
}

# gloo has rings only, and its reduce-scatter moves as many bytes as its all-reduce (measured: 1.5 tensors at 4).
_GLOO: dict[str, tuple[Algorithm, ...]] = {
    "all_reduce": (_twice(_lockstep_ring),),
    "all_gather": (_lockstep_ring,),
    "reduce_scatter": (_twice(_lockstep_ring),),
    "all_to_all": (_pairwise,),
    "broadcast": (_binomial,),
    "send": (_send,),
}

# (factor on the wire, factor on latencies). NCCL's low-latency protocol, by its own src/graph/tuning.cc: a quarter
# of the rate, and 0.6 to 2.7 us a step where the simple protocol takes 3.4 to 9.6.
_PROTOCOLS: dict[str, tuple[Line, ...]] = {"nccl": ((1.0, 1.0), (4.0, 0.25)), "gloo": ((1.0, 1.0),)}
