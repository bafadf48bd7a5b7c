"""Peaks of a pair's forward and backward, by liveness of the traced graphs.

A storage lives from the node that makes it to the last that reads it, views included; arguments that are handed
over in a list go likewise, results stay. What a compiler fuses away is never memory; but ops that read the same
storage and need not wait for each other become one kernel, so that all they read and write is there at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, fx

from meshwright.cost.traced.compiled_peak import Kernel, KernelMemory
from meshwright.cost.traced.fusible import is_fusible
from meshwright.cost.traced.kernels import kernel_numbers, one_kernel
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import base, is_part, is_view, outputs_of, producer, storage_bytes


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
    own = [n for n in module.graph.nodes if n.op == "placeholder" and n.name not in held]
    results = {base(node) for node in outputs_of(module) if isinstance(node, fx.Node)}
    kept = (results - set(added)) | {node for node in own if node.name in stay}
    if costs.fused:
        return KernelMemory(_kernels(module, costs, results), own, kept, costs).peak()
    order = {node: i for i, node in enumerate(module.graph.nodes)}
    last = _last_uses(module)
    live = sum(storage_bytes(node) for node in own)
    counted = {node: storage_bytes(node) for node in own}
    most = live
    for node in own:
        if node not in last and node not in kept:
            live -= counted.pop(node)
    ending: dict[int, list[fx.Node]] = {}
    for storage, reader in last.items():
        ending.setdefault(order[reader], []).append(storage)
    for node in (node for node in order if node.op == "call_function"):
        for made in _made(node, costs, results):
            if made in added and made.target is torch.ops.aten.mm.default and len(made.users) == 1:
                continue  # only the output reads it
            counted[made] = storage_bytes(made)
            live += counted[made]
        most = max(most, live + costs.working_bytes(node) + _left_bytes(node))
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


def _last_uses(module: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    found: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            found[base(node)] = node
            found.update((base(other), node) for other in node.all_input_nodes)
    return found


def _kernels(module: fx.GraphModule, costs: NodeCosts, results: set[fx.Node]) -> list[Kernel]:
    """In the order they were written. What is never written is computed wherever it is read."""
    order = kernel_numbers(module)
    reads: dict[fx.Node, set[fx.Node]] = {}
    found: dict[int, Kernel] = {}
    for node in order:
        if node.op != "call_function":
            continue
        reads[node] = {one for other in node.all_input_nodes for one in _stored(other, costs, results, reads)}
        made = [one for one in _made(node, costs, results) if _is_memory(one, costs, results)]
        if made or not is_fusible(node):
            kernel = found.setdefault(order[node], Kernel())
            kernel.makes += made
            kernel.reads |= reads[node]
            kernel.working = max(kernel.working, costs.working_bytes(node) + _left_bytes(node))
    for earlier, later in one_kernel(module):
        if order[earlier] in found and order[later] in found:
            found[order[later]].reads |= {base(earlier), *reads[earlier]}
    return [kernel for _, kernel in sorted(found.items())]


def _stored(
    node: fx.Node, costs: NodeCosts, results: set[fx.Node], reads: dict[fx.Node, set[fx.Node]]
) -> Iterable[fx.Node]:
    """The memory that a value is read from: its own, or what it is computed from where it is never written."""
    storage = base(node)
    if storage.op != "call_function" or _is_memory(storage, costs, results):
        return (storage,)
    return reads[producer(storage)]


def _is_memory(storage: fx.Node, costs: NodeCosts, results: set[fx.Node]) -> bool:
    """One of the results of a fused op is written where somebody else reads that one."""
    return storage in results or not is_fusible(producer(storage)) or costs.is_written(storage)
