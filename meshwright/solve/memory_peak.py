"""Peaks of a pair's forward and backward, by liveness of the traced graphs.

A storage lives from the node that makes it to the last that reads it, views included; arguments that are handed
over in a list go likewise, results stay. What a compiler fuses away is never memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor, fx

from meshwright.generate.storage import base, is_part, is_view, outputs_of, storage_bytes
from meshwright.solve.memory_nodes import NodeCosts


def peak_bytes(
    module: fx.GraphModule, held: Collection[str], stay: Collection[str], costs: NodeCosts
) -> tuple[int, int]:
    """(the most bytes in use at a time, bytes in use at the end). `held`: placeholders that lie in memory anyway and
    are not counted; `stay`: those that are, and that the caller does not let go of."""
    last = _last_uses(module)
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


def _last_uses(module: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    found: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            found[base(node)] = node
            for other in node.all_input_nodes:
                found[base(other)] = node
    return found
