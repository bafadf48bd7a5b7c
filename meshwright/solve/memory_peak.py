"""Peaks of a pair's forward and backward, by liveness of the traced graphs.

A storage lives from the node that makes it to the last that reads it, views included; arguments that are handed
over in a list go likewise, results stay. What a compiler fuses away is never memory; but ops that read the same
storage and need not wait for each other become one kernel, so that all they read and write is there at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor, fx

from meshwright.generate.storage import base, is_part, is_view, outputs_of, storage_bytes
from meshwright.solve.memory_nodes import NodeCosts, is_fusible


def peak_bytes(
    module: fx.GraphModule, held: Collection[str], stay: Collection[str], costs: NodeCosts
) -> tuple[int, int]:
    """(the most bytes in use at a time, bytes in use at the end). `held`: placeholders that lie in memory anyway and
    are not counted; `stay`: those that are, and that the caller does not let go of."""
    last = _last_uses(module, costs)
    own = [n for n in module.graph.nodes if n.op == "placeholder" and n.name not in held]
    live = sum(storage_bytes(node) for node in own)
    counted = {node: storage_bytes(node) for node in own}
    results = {base(node) for node in outputs_of(module) if isinstance(node, fx.Node)}
    kept = results | {node for node in own if node.name in stay}
    most = live
    for node in own:
        if node not in last and node not in kept:
            live -= counted.pop(node)
    ending: dict[fx.Node, list[fx.Node]] = {}
    for storage, reader in last.items():
        ending.setdefault(reader, []).append(storage)
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        for made in _made(node, costs, results):
            counted[made] = storage_bytes(made)
            live += counted[made]
        most = max(most, live + costs.working_bytes(node) + _left_bytes(node))
        for storage in ending.get(node, ()):
            if storage in counted and storage not in kept:
                live -= counted.pop(storage)
    return most, live


def _made(node: fx.Node, costs: NodeCosts, results: set[fx.Node]) -> Iterable[fx.Node]:
    """The storages that a node brings into being: an op with several results makes its parts."""
    if is_part(node) or is_view(node):
        return ()
    parts = [user for user in node.users if is_part(user)]
    if parts:
        return parts
    return (node,) if costs.is_written(node) or node in results else ()


def _left_bytes(node: fx.Node) -> int:
    """Results that nobody takes: they go as soon as the others are taken."""
    value = node.meta.get("val")
    if not isinstance(value, list | tuple) or is_view(node):
        return 0
    taken = {user.args[1] for user in node.users if is_part(user)}
    left = [item for index, item in enumerate(value) if index not in taken and isinstance(item, Tensor)]
    return sum(item.untyped_storage().nbytes() for item in left)


def _last_uses(module: fx.GraphModule, costs: NodeCosts) -> dict[fx.Node, fx.Node]:
    found: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            found[base(node)] = node
            for other in node.all_input_nodes:
                found[base(other)] = node
    if costs.fused:
        order = {node: index for index, node in enumerate(module.graph.nodes)}
        for earlier, later in _one_kernel(module):
            for storage in (base(earlier), *(base(other) for other in earlier.all_input_nodes)):
                if order[found[storage]] < order[later]:
                    found[storage] = later
    return found


def _one_kernel(module: fx.GraphModule) -> Iterable[tuple[fx.Node, fx.Node]]:
    """Pairs of fused ops that read the same storage, the later not waiting for the earlier through another kernel.

    Sets of nodes are whole numbers, a bit per node: all that a node is computed from, and those among them from which
    every way, or some way, leads through an op that is not fused.
    """
    bit: dict[fx.Node, int] = {}
    above: dict[fx.Node, int] = {}
    behind: dict[fx.Node, int] = {}
    readers: dict[fx.Node, list[fx.Node]] = {}
    for index, node in enumerate(module.graph.nodes):
        bit[node], above[node], behind[node] = 1 << index, 1 << index, 0
        for other in node.all_input_nodes:
            above[node] |= above[other]
            apart = other.op == "call_function" and not is_fusible(other)
            behind[node] |= above[other] if apart else behind[other]
        if node.op != "call_function" or is_view(node) or is_part(node) or not is_fusible(node):
            continue
        for storage in {base(other) for other in node.all_input_nodes}:
            for earlier in readers.setdefault(storage, []):
                if not behind[node] & bit[earlier]:
                    yield earlier, node
            readers[storage].append(node)
