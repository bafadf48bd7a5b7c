"""Peaks of a pair's forward and backward, by liveness of the traced graphs.

A storage lives from the node that makes it to the last that reads it, views included; arguments that are handed
over in a list go likewise, results stay. What a compiler fuses away is never memory; but ops that read the same
storage and need not wait for each other become one kernel, so that all they read and write is there at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import zip_longest

import torch
from torch import Tensor, fx

from meshwright.cost.traced.fusible import is_fusible
from meshwright.cost.traced.kernels import kernel_numbers, one_kernel
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import base, is_part, is_view, outputs_of, storage_bytes


def peak_bytes(
    module: fx.GraphModule,
    held: Collection[str],
    stay: Collection[str],
    costs: NodeCosts,
    added: Collection[fx.Node] = (),
) -> tuple[int, int]:
    """(the most bytes in use at a time, bytes in use at the end). `held`: placeholders that lie in memory anyway and
    are not counted; `stay`: those that are, and that the caller does not let go of. added: results that are added to
    something else as soon as they are made, a product while it is."""
    order = kernel_numbers(module) if costs.fused else {node: i for i, node in enumerate(module.graph.nodes)}
    last = _last_uses(module, costs, order)
    own = [n for n in module.graph.nodes if n.op == "placeholder" and n.name not in held]
    live = sum(storage_bytes(node) for node in own)
    counted = {node: storage_bytes(node) for node in own}
    results = {base(node) for node in outputs_of(module) if isinstance(node, fx.Node)}
    kept = (results - set(added)) | {node for node in own if node.name in stay}
    most = live
    for node in own:
        if node not in last and node not in kept:
            live -= counted.pop(node)
    ending: dict[int, list[fx.Node]] = {}
    for storage, reader in last.items():
        ending.setdefault(order[reader], []).append(storage)
    nodes = sorted((node for node in order if node.op == "call_function"), key=order.__getitem__)
    for node, following in zip_longest(nodes, nodes[1:]):
        for made in _made(node, costs, results):
            if made in added and made.target is torch.ops.aten.mm.default and len(made.users) == 1:
                continue  # only the output reads it
            counted[made] = storage_bytes(made)
            live += counted[made]
        most = max(most, live + costs.working_bytes(node) + _left_bytes(node))
        if following is not None and order[following] == order[node]:
            continue
        for storage in ending.get(order[node], ()):
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


def _last_uses(module: fx.GraphModule, costs: NodeCosts, order: dict[fx.Node, int]) -> dict[fx.Node, fx.Node]:
    found: dict[fx.Node, fx.Node] = {}

    def use(storage: fx.Node, reader: fx.Node) -> None:
        if storage not in found or order[found[storage]] < order[reader]:
            found[storage] = reader

    run = _run_at(module, costs, order) if costs.fused else {}
    for node in order:
        if node.op == "call_function":
            use(base(node), node)
            for other in node.all_input_nodes:
                use(base(other), run.get(node, node))
    if costs.fused:
        for earlier, later in one_kernel(module):
            for storage in (base(earlier), *(base(other) for other in earlier.all_input_nodes)):
                use(storage, run.get(later, later))
    return found


def _run_at(module: fx.GraphModule, costs: NodeCosts, order: dict[fx.Node, int]) -> dict[fx.Node, fx.Node]:
    """What is never written is computed where it is read: in the kernel of the last that does."""
    found: dict[fx.Node, fx.Node] = {}
    for node in reversed(module.graph.nodes):
        if node.op == "call_function" and is_fusible(node) and (is_view(node) or not costs.is_written(node)):
            users = [found.get(user, user) for user in node.users if user.op == "call_function"]
            if users:
                found[node] = max(users, key=order.__getitem__)
    return found
