"""Calling a traced graph with a list that it empties, so that each argument is freed after its last use.

A Python caller holds the arguments of a call until it returns: saved values would all live to the end of backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from meshwright.generate.plain import plainly

Boxed = Callable[[list[Tensor]], tuple[Any, ...]]


class Told(Protocol):
    """Is handed results as soon as they are there, each with its place among those that are told."""

    def result(self, place: int, tensor: Tensor) -> None: ...

    def product(self, place: int, one: Tensor, other: Tensor) -> None:
        """A result that is the product of two matrices: whoever adds it to something need not have it by itself."""
        ...


def boxed(module: fx.GraphModule) -> Boxed:
    """The module as a function of one list, which is empty when it returns."""
    graph, _ = _boxed(module)
    return fx.GraphModule(module, graph).forward


def telling(module: fx.GraphModule, first: int) -> Callable[..., tuple[Any, ...]]:
    """The same with a second argument, a `Told`, which gets the results from the first-th on while others are still
    being computed; they are not returned."""
    graph, told = _boxed(module, told=True)
    output = graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    output.args = (tuple(results[:first]),)
    for place, result in enumerate(results[first:]):
        if not isinstance(result, fx.Node):
            continue
        with graph.inserting_after(result if result.op == "call_function" else _last_argument(graph)):
            if result.target is torch.mm and not result.users and results.count(result) == 1:
                graph.call_method("product", (told, place, *result.args))
                graph.erase_node(result)
            else:
                graph.call_method("result", (told, place, result))
    return fx.GraphModule(module, graph).forward


def _boxed(module: fx.GraphModule, told: bool = False) -> tuple[fx.Graph, fx.Node | None]:
    graph = fx.Graph()
    box = graph.placeholder("box_of_arguments")
    other = graph.placeholder("told") if told else None
    new: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            new[node] = graph.call_method("pop", (box, 0))
        elif node.op != "output":
            new[node] = graph.node_copy(node, lambda old: new[old])
    graph.output(fx.map_arg(module.graph.output_node().args[0], lambda old: new[old]))
    plainly(graph)
    return graph, other


def _last_argument(graph: fx.Graph) -> fx.Node:
    found: fx.Node = [node for node in graph.nodes if node.op == "call_method" and node.target == "pop"][-1]
    return found
