"""Which ops a compiler joins into one kernel, and what the kernels of a traced graph take.

Ops that are fused read what other kernels have written and write what other kernels, or the caller, will read; all
between is in registers. A fused op that nobody but fused ops read is computed again where it is read, so its reader
reads what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, fx

from meshwright.cost.traced.fusible import is_fusible
from meshwright.cost.traced.nodes import SHORTEST_S, NodeCosts
from meshwright.cost.traced.storage import base, is_part, is_view, outputs_of, storage_bytes

KERNELS_PER_GROUP = 2
"""A compiler splits long reductions: groups of GPT and Llama became about twice as many kernels, those of BERT, DINOv2
and GPT-NeoX 2.6 to 2.8 times, those of Gemma 1.3 times."""


def graph_seconds(module: fx.GraphModule, costs: NodeCosts) -> float:
    """Seconds of one half, kernel by kernel; op by op where nothing is fused."""
    if not costs.fused:
        return sum(costs.seconds(node) for node in module.graph.nodes)
    results = {base(node) for node in outputs_of(module) if isinstance(node, fx.Node)}
    alone = (node for node in module.graph.nodes if not is_fusible(node))
    seconds = sum(costs.seconds(node) for node in alone)
    for nodes in fusion_groups(module):
        moved = _moved_bytes(nodes, costs, results)
        if moved:
            seconds += KERNELS_PER_GROUP * (costs.between_s + SHORTEST_S) + moved / costs.rate
            seconds += sum(costs.extra_s(node) for node in nodes)
    return seconds


def loaded(module: fx.GraphModule, costs: NodeCosts) -> NodeCosts:
    """What ops take where a device does nothing but this, forward and backward, over and over."""
    return costs.under_load(module.graph.nodes, graph_seconds(module, costs))


def fusion_groups(module: fx.GraphModule) -> list[list[fx.Node]]:
    """Fused ops by kernel: an op joins those it reads from, then those that read what it reads, unless one of the two
    kernels would have to wait for the other through an op that is not fused."""
    nodes = [n for n in module.graph.nodes if n.op == "call_function" and not is_view(n) and not is_part(n)]
    behind, bit = _behind(module)
    group = {node: _Group(bit[node], behind[node], [node]) for node in nodes if is_fusible(node)}
    direct = [(maker(base(other)), node) for node in group for other in node.all_input_nodes]
    for earlier, later in [*direct, *one_kernel(module)]:
        if earlier in group and group[earlier] is not group[later] and group[earlier].may_join(group[later]):
            joined = group[earlier].joined(group[later])
            group.update(dict.fromkeys(joined.nodes, joined))
    return [found.nodes for found in {id(found): found for found in group.values()}.values()]


@dataclass(frozen=True, slots=True)
class _Group:
    """Ops of one kernel; `bits` are theirs, `behind` those of all that it waits for through another kernel."""

    bits: int
    behind: int
    nodes: list[fx.Node]

    def may_join(self, other: _Group) -> bool:
        return not (self.behind & other.bits or other.behind & self.bits)

    def joined(self, other: _Group) -> _Group:
        return _Group(self.bits | other.bits, self.behind | other.behind, [*self.nodes, *other.nodes])


def maker(storage: fx.Node) -> fx.Node:
    return storage.all_input_nodes[0] if is_part(storage) else storage


def _moved_bytes(nodes: list[fx.Node], costs: NodeCosts, results: set[fx.Node]) -> int:
    """Distinct storages that one kernel reads, each as far as it is looked at, and those it writes."""
    inside = set(nodes)
    read: dict[fx.Node, int] = {}
    written = 0
    for node in nodes:
        for other in node.all_input_nodes:
            for storage, size in _sources(other, inside, costs, results):
                read[storage] = max(read.get(storage, 0), size)
        made = [user for user in node.users if is_part(user)] or [node]
        if costs.is_written(node) or any(one in results for one in made):
            written += sum(storage_bytes(one) for one in made)
    # Nothing is written where all results are read by fused ops: the kernel is part of theirs.
    return sum(read.values()) + written if written else 0


def _sources(
    node: fx.Node, inside: set[fx.Node], costs: NodeCosts, results: set[fx.Node]
) -> Iterable[tuple[fx.Node, int]]:
    """What is read from memory for a value: its storage, or what it is computed from where it is never written."""
    storage = base(node)
    made_by = maker(storage)
    if made_by in inside:
        return
    if made_by.op == "call_function" and is_fusible(made_by) and not costs.is_written(made_by):
        if storage in results:
            yield storage, storage_bytes(storage)
            return
        for other in made_by.all_input_nodes:
            yield from _sources(other, inside, costs, results)
        return
    value = node.meta.get("val")
    seen = value.numel() * value.element_size() if isinstance(value, Tensor) else storage_bytes(storage)
    yield storage, min(seen, storage_bytes(storage))


def kernel_numbers(module: fx.GraphModule) -> dict[fx.Node, int]:
    """When each node runs: one number for all that one kernel does. A fused op joins the first kernel that reads what
    it reads, if all else it reads is there by then."""
    partners: dict[fx.Node, list[fx.Node]] = {}
    for earlier, later in one_kernel(module):
        partners.setdefault(later, []).append(earlier)
    found: dict[fx.Node, int] = {}
    for index, node in enumerate(module.graph.nodes):
        ready = max((found[other] for other in node.all_input_nodes), default=0)
        joined = [found[other] for other in partners.get(node, ()) if found[other] >= ready]
        last = [base(other) for other in node.all_input_nodes if found[other] == ready]
        if is_fusible(node) and last and all(is_fusible(other) for other in last):
            joined.append(ready)
        found[node] = min(joined, default=index)
        if is_view(node) or is_part(node):
            found[node] = ready
    return found


def one_kernel(module: fx.GraphModule) -> Iterable[tuple[fx.Node, fx.Node]]:
    """Pairs of fused ops that read the same storage, the later not waiting for the earlier through another kernel."""
    behind, bit = _behind(module)
    readers: dict[fx.Node, list[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op != "call_function" or is_view(node) or is_part(node) or not is_fusible(node):
            continue
        for storage in {base(other) for other in node.all_input_nodes}:
            for earlier in readers.setdefault(storage, []):
                if not behind[node] & bit[earlier]:
                    yield earlier, node
            readers[storage].append(node)


def _behind(module: fx.GraphModule) -> tuple[dict[fx.Node, int], dict[fx.Node, int]]:
    """(per node those among its ancestors from which some way leads through an op that is not fused, each node's bit).

    Sets of nodes are whole numbers, a bit per node."""
    bit: dict[fx.Node, int] = {}
    above: dict[fx.Node, int] = {}
    behind: dict[fx.Node, int] = {}
    for index, node in enumerate(module.graph.nodes):
        bit[node], above[node], behind[node] = 1 << index, 1 << index, 0
        for other in node.all_input_nodes:
            above[node] |= above[other]
            apart = other.op == "call_function" and not is_fusible(other)
            behind[node] |= above[other] if apart else behind[other]
    return behind, bit
