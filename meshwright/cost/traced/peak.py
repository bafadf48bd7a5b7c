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
from meshwright.cost.traced.storage import bases, left_bytes, made_by, outputs_of, storage_bytes


def peak_bytes(
    module: fx.GraphModule, held: Collection[str], stay: Collection[str], costs: NodeCosts
) -> tuple[int, int]:
    """(the most bytes in use at a time, bytes in use at the end). `held`: placeholders that lie in memory anyway and
    are not counted; `stay`: those that are, and that the caller does not let go of."""
    return Lives(module, costs).peak_bytes(held, stay)


class Lives:
    """When the storages of a graph are made, and when they go."""

    def __init__(self, module: fx.GraphModule, costs: NodeCosts) -> None:
        self.module, self.costs = module, costs
        lies = bases(module.graph.nodes)
        self.results = {lies[node] for node in outputs_of(module) if isinstance(node, fx.Node)}
        if costs.fused:
            return
        calls = [node for node in module.graph.nodes if node.op == "call_function"]
        self.last: dict[fx.Node, fx.Node] = {}
        for node in calls:
            self.last[lies[node]] = node
            self.last.update((lies[other], node) for other in node.all_input_nodes)
        ending: dict[fx.Node, list[fx.Node]] = {}
        for storage, reader in self.last.items():
            ending.setdefault(reader, []).append(storage)
        self.steps = [
            (
                [(made, storage_bytes(made)) for made in made_by(node)],
                costs.working_bytes(node) + left_bytes(node),
                ending.get(node, ()),
            )
            for node in calls
        ]

    def peak_bytes(
        self, held: Collection[str], stay: Collection[str], added: Collection[fx.Node] = ()
    ) -> tuple[int, int]:
        """As the function. added: results that are added to something else as soon as they are made, a product while it
        is."""
        own = [n for n in self.module.graph.nodes if n.op == "placeholder" and n.name not in held]
        kept = (self.results - set(added)) | {node for node in own if node.name in stay}
        if self.costs.fused:
            return compiled_peak(self.module, own, self.results, kept, self.costs)
        counted = {node: storage_bytes(node) for node in own}
        most = live = sum(counted.values())
        for node in own:
            if node not in self.last and node not in kept:
                live -= counted.pop(node)
        for made, working, ending in self.steps:
            for node, size in made:
                if node in added and node.target is torch.ops.aten.mm.default and len(node.users) == 1:
                    continue  # only the output reads it
                counted[node] = size
                live += size
            most = max(most, live + working)
            for storage in ending:
                if storage in counted and storage not in kept:
                    live -= counted.pop(storage)
        return most, live
