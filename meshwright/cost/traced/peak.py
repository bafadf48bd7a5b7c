"""Peaks of a pair's forward and backward, by liveness of the traced graphs.

A storage lives from the node that makes it to the last that reads it, views included; arguments that are handed
over in a list go likewise, results stay.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from meshwright.cost.traced.compiled_peak import compiled_peak
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import base, left_bytes, made_by, outputs_of, storage_bytes


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
        return compiled_peak(module, own, results, kept, costs)
    last = _last_uses(module)
    live = sum(storage_bytes(node) for node in own)
    counted = {node: storage_bytes(node) for node in own}
    most = live
    for node in own:
        if node not in last and node not in kept:
            live -= counted.pop(node)
    ending: dict[fx.Node, list[fx.Node]] = {}
    for storage, reader in last.items():
        ending.setdefault(reader, []).append(storage)
    for node in (node for node in module.graph.nodes if node.op == "call_function"):
        for made in made_by(node):
            if made in added and made.target is torch.ops.aten.mm.default and len(made.users) == 1:
                continue  # only the output reads it
            counted[made] = storage_bytes(made)
            live += counted[made]
        most = max(most, live + costs.working_bytes(node) + left_bytes(node))
        for storage in ending.get(node, ()):
            if storage in counted and storage not in kept:
                live -= counted.pop(storage)
    return most, live


def _last_uses(module: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    found: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            found[base(node)] = node
            found.update((base(other), node) for other in node.all_input_nodes)
    return found
