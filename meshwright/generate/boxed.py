"""Calling a traced graph with a list that it empties, so that each argument is freed after its last use.

A Python caller holds the arguments of a call until it returns: saved values would all live to the end of backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

Boxed = Callable[[list[Tensor]], tuple[Any, ...]]


def boxed(module: fx.GraphModule) -> Boxed:
    """The module as a function of one list, which is empty when it returns.

    A view that was traced may meet other strides than it was promised (a BatchNorm's result, for one): then it copies.
    """
    graph = fx.Graph()
    box = graph.placeholder("box_of_arguments")
    new: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            new[node] = graph.call_method("pop", (box, 0))
        elif node.op != "output":
            new[node] = graph.node_copy(node, lambda old: new[old])
            if node.target is torch.ops.aten.view.default:
                new[node].target = torch.ops.aten.reshape.default
    graph.output(fx.map_arg(module.graph.output_node().args[0], lambda old: new[old]))
    return fx.GraphModule(module, graph)
