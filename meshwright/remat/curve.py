"""The time-memory frontier of a sharded segment, as RematPoints made from its joint graph.

The problem is that of `recompute` on the storages of the joint graph. Storages that are in memory in any case
(parameters, common values, buffers) are free to keep. Each point of the frontier is cut into a pair, whose peaks are
measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import fsum

from torch import fx

from meshwright.caches import CACHES
from meshwright.cluster import Device, Mesh
from meshwright.cost.traced.host import graph_host_s
from meshwright.cost.traced.kernels import graph_seconds, loaded
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.peak import Lives, peak_bytes
from meshwright.cost.traced.storage import (
    ancestors,
    base,
    depends_on,
    is_statistic,
    outputs_of,
    producer,
    runs_once,
    storage_bytes,
    written_to,
)
from meshwright.generate.cut import Cut, cut, read_by_backward
from meshwright.generate.joint import Joint, label
from meshwright.generate.split import weight_half
from meshwright.plan import Choice
from meshwright.remat.recompute import PICO, Answer, Recomputation, Rerun, Storage, evaluate, fastest, frontier


@dataclass(frozen=True, slots=True)
class RematPoint:
    """A way to run a segment with its sharding fixed. Names are those of `Joint.names`.

    recompute: values that backward reads and that are not kept.
    keep: values that are kept besides.
    resident_bytes: from forward to backward.
    recompute_s: by which backward is longer.
    forward_transient_bytes, backward_transient_bytes: on top of resident bytes, at the worst moment.
    gradient_bytes: of the parameters, from this backward to the step.
    forced: values that had to be kept, with the reason.
    offload, offloaded_bytes: saved values that are on the host between forward and backward.
    rest_bytes: from the input half of backward to its weight half.
    added_bytes: by which backward's transient is less where gradients are added to those of another micro-batch.
    weight_s: the part of backward_s for parameter gradients alone.
    forward_host_s, backward_host_s: seconds of kernel launches; zero on a CPU.
    """

    saved: tuple[str, ...]
    recompute: tuple[str, ...]
    keep: tuple[str, ...]
    resident_bytes: int
    recompute_s: float
    forward_transient_bytes: int
    backward_transient_bytes: int
    gradient_bytes: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    forced: tuple[tuple[str, str], ...] = ()
    chunks: int = 1
    offload: tuple[str, ...] = ()
    offloaded_bytes: int = 0
    rest_bytes: int = 0
    added_bytes: int = 0
    weight_s: float = 0.0
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s

    def with_transient(self, size: int) -> RematPoint:
        """The same with so many bytes more in use while it runs."""
        return replace(
            self,
            forward_transient_bytes=self.forward_transient_bytes + size,
            backward_transient_bytes=self.backward_transient_bytes + size,
        )

    def on(self, choice: Choice) -> Choice:
        """The choice of a segment that runs in this way."""
        return replace(choice, recompute=self.recompute, keep=self.keep, chunks=self.chunks, offload=self.offload)


def kept_curve(joint: Joint, costs: NodeCosts, held: Collection[str] = ()) -> tuple[RematPoint, ...]:
    """The exact lower hull of (resident bytes, recomputation seconds), most bytes first.

    held: names of storages that another segment keeps in any case.
    """
    return _curve(joint, costs.device, costs.fused, costs.mesh, tuple(held))


@CACHES.memoized(maxsize=256)
def _curve(
    joint: Joint, device: Device, fused: bool, mesh: Mesh | None, held: tuple[str, ...]
) -> tuple[RematPoint, ...]:
    costs = loaded(joint.module, NodeCosts(device, fused, mesh))
    found: dict[frozenset[int], RematPoint] = {}
    for reads in (False, True) if costs.fused else (False,):
        problem, nodes = recomputation(joint, costs, held, reads)
        for answer in frontier(problem):
            for one in (_or_usual(joint, problem, nodes, answer), answer):  # which may take less while it runs
                if one.kept not in found:
                    found[one.kept] = _kept(joint, nodes, one, costs, held)
    return undominated(found.values())


def fastest_way(joint: Joint, costs: NodeCosts) -> RematPoint:
    """The first point of `kept_curve`, at less cost."""
    return kept_curve(joint, costs)[0] if costs.fused else _fastest(joint, costs.device, costs.mesh)


@CACHES.memoized(maxsize=256)
def _fastest(joint: Joint, device: Device, mesh: Mesh | None) -> RematPoint:
    costs = loaded(joint.module, NodeCosts(device, False, mesh))
    problem, nodes = recomputation(joint, costs)
    return _kept(joint, nodes, _or_usual(joint, problem, nodes, fastest(problem)), costs, ())


def _or_usual(joint: Joint, problem: Recomputation, nodes: list[fx.Node], answer: Answer) -> Answer:
    """What autograd keeps, where that takes no more bytes and the answer recomputes nothing either: it keeps something
    else in the place of a value, which is no checkpointing."""
    if answer.picoseconds:
        return answer
    read = set(read_by_backward(joint))
    pairs = enumerate(zip(nodes, problem.storages, strict=True))
    usual = evaluate(problem, [index for index, (node, storage) in pairs if node in read or not storage.bytes])
    return usual if usual and not usual.picoseconds and usual.bytes <= answer.bytes else answer


def undominated(ways: Iterable[RematPoint]) -> tuple[RematPoint, ...]:
    """Points that no other dominates in seconds, resident bytes and both transients; most bytes first."""
    found: list[RematPoint] = []
    for kept in sorted(ways, key=lambda kept: (kept.seconds, kept.resident_bytes)):
        if not any(_beats(other, kept) for other in found):
            found.append(kept)
    return tuple(sorted(found, key=lambda kept: -kept.resident_bytes))


def _beats(one: RematPoint, other: RematPoint) -> bool:
    return (
        one.seconds <= other.seconds
        and one.resident_bytes <= other.resident_bytes
        and one.forward_transient_bytes <= other.forward_transient_bytes
        and one.backward_transient_bytes <= other.backward_transient_bytes
    )


def recomputation(
    joint: Joint, costs: NodeCosts, held: Collection[str] = (), reads: bool = False
) -> tuple[Recomputation, list[fx.Node]]:
    """The recomputation problem of a joint graph, with the node of each storage."""
    late = depends_on(joint.module, joint.tangents)
    results = [n for n in outputs_of(joint.module) if isinstance(n, fx.Node)]
    needed = ancestors(results[joint.forward_outputs :])
    read = {base(n) for user in needed & late for n in user.all_input_nodes if n not in late}
    read |= {base(n) for n in results[joint.forward_outputs :] if n not in late}
    run_anyway = ancestors(results[: joint.forward_outputs])
    free = in_memory_anyway(joint) | set(held)
    nodes: list[fx.Node] = []
    for node in joint.module.graph.nodes:
        if node in joint.names and node in needed:
            nodes.append(node)
    index = {node: i for i, node in enumerate(nodes)}
    makers = dict.fromkeys(producer(node) for node in nodes if node.op == "call_function")
    ops = {maker: i for i, maker in enumerate(maker for maker in makers if not runs_once(maker))}
    storages = [
        Storage(
            joint.names[node],
            0 if joint.names[node] in free else storage_bytes(node),
            ops.get(producer(node)),
            not written_to(node),
        )
        for node in nodes
    ]
    reruns = []
    for maker in ops:
        operands = dict.fromkeys(index[base(n)] for n in maker.all_input_nodes if base(n) in index)
        # What forward has no use for runs once in any case, before or after the loss.
        seconds = costs.makes_again_s(maker, reads) if maker in run_anyway else 0.0
        reruns.append(Rerun(round(seconds * PICO), tuple(operands)))
    problem = Recomputation(tuple(storages), tuple(reruns), frozenset(index[n] for n in read if n in index))
    problem.verify()
    return problem, nodes


def in_memory_anyway(joint: Joint) -> set[str]:
    """Parameters, common values, and buffers that the step does not replace."""
    graph = joint.graph
    replaced = {buffer for buffer, _ in graph.updates}
    values = (*graph.shared_values, *graph.params, *(value for value in graph.buffers if value.name not in replaced))
    return {label(value.name) for value in values}


def _kept(joint: Joint, nodes: list[fx.Node], answer: Answer, costs: NodeCosts, held: Collection[str]) -> RematPoint:
    read = read_by_backward(joint)
    statistics = {node for node in read if is_statistic(node)} - {nodes[i] for i in answer.kept}
    found = cut(joint, {nodes[i] for i in answer.kept} | statistics, run=False)
    standard = [joint.names[node] for node in read]
    return measure(
        joint,
        found,
        costs,
        recompute=tuple(name for name in standard if name not in found.saved),
        keep=tuple(name for name in found.saved if name not in standard),
        resident_bytes=answer.bytes + sum(storage_bytes(n) for n in statistics if joint.names[n] in found.saved),
        recompute_s=answer.seconds,
        held=held,
    )


def measure(
    joint: Joint,
    found: Cut,
    costs: NodeCosts,
    *,
    recompute: tuple[str, ...],
    keep: tuple[str, ...],
    resident_bytes: int,
    recompute_s: float,
    held: Collection[str] = (),
) -> RematPoint:
    """Seconds and peaks of a cut pair."""
    anyway = in_memory_anyway(joint)
    first, second = found.halves.first, found.halves.second
    forward_peak, _ = peak_bytes(first, anyway, (), costs)
    lives = Lives(second, costs)
    stay = {label(value.name) for value in joint.graph.inputs} & anyway
    backward_peak, _ = lives.peak_bytes(anyway, stay | joint.tangents)
    gradients = outputs_of(second)[len(joint.grad_inputs) :]
    storages = {base(node) for node in gradients if isinstance(node, fx.Node)}
    params = frozenset(label(value.name) for value in joint.graph.params)
    late, read = weight_half(second, len(joint.grad_inputs), joint.tangents, params)
    kept = RematPoint(
        found.saved,
        recompute,
        keep,
        resident_bytes,
        recompute_s,
        max(0, forward_peak - resident_bytes),
        max(0, backward_peak - resident_bytes),
        sum(storage_bytes(node) for node in storages),
        graph_seconds(first, costs),
        graph_seconds(second, costs),
        found.forced,
        weight_s=fsum(costs.seconds(node) for node in late),
        forward_host_s=graph_host_s(first, costs),
        backward_host_s=graph_host_s(second, costs),
    )
    if costs.fused:
        return kept
    rest = [node for node in read if node.name not in anyway]
    adding_peak, _ = lives.peak_bytes(anyway, stay | joint.tangents, storages)
    return replace(kept, rest_bytes=sum(map(storage_bytes, rest)), added_bytes=backward_peak - adding_peak)
