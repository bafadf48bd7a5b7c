"""Cutting a traced graph in two: what the first part hands to the second is what is *saved*.

Views are never saved: the second part takes the view again from its base.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.fx.node import map_arg

from meshwright.cost.traced.storage import ancestors, base, depends_on, is_part, is_view, outputs_of


@dataclass(frozen=True, slots=True)
class Halves:
    """first(*placeholders) -> (*first outputs, *saved); second(*saved, *own placeholders) -> second outputs.

    saved and own: names of nodes of the whole graph, in the order in which they are passed.
    """

    first: fx.GraphModule
    second: fx.GraphModule
    saved: tuple[str, ...]
    own: tuple[str, ...]


def split_at(whole: fx.GraphModule, early: set[fx.Node], first_outputs: int, own: frozenset[str]) -> Halves:
    """The first part computes all of `early`, a set that holds what its members are computed from, and the first
    `first_outputs` outputs among them; the second, the other outputs.

    `own`: placeholders that the second part is handed anew (tangents, parameters) and that are not saved.
    """
    outputs = outputs_of(whole)
    early = _with_parts(whole, early)
    needed = ancestors(node for node in outputs[first_outputs:] if isinstance(node, fx.Node))
    placeholders = [node for node in whole.graph.nodes if node.op == "placeholder"]
    late = {node for node in needed if node not in early and node.op != "placeholder"}
    crossing = _crossing(late, outputs[first_outputs:])
    again = {node for node in crossing if is_view(node)}
    saved = [
        n for n in whole.graph.nodes if n in crossing and n not in again and n.name not in own and n.op != "get_attr"
    ]
    used = [node for node in placeholders if node in crossing and node.name in own]
    nodes = list(whole.graph.nodes)
    first = extract(whole, placeholders, [n for n in nodes if n in early], [*outputs[:first_outputs], *saved])
    inside = late | again
    second = extract(whole, [*saved, *used], [n for n in nodes if n in inside], outputs[first_outputs:])
    return Halves(first, second, tuple(node.name for node in saved), tuple(node.name for node in used))


def split_backward(whole: fx.GraphModule, inputs: int, own: frozenset[str], params: frozenset[str]) -> Halves:
    """A backward in two: the gradients of its `inputs` inputs, then those of the parameters."""
    return split_at(whole, _input_half(whole, inputs, params), inputs, own)


def _input_half(whole: fx.GraphModule, inputs: int, params: frozenset[str]) -> set[fx.Node]:
    """What the inputs' gradients are computed from, and whatever reads a parameter: those stored in pieces are gathered
    for the first half only."""
    outputs = outputs_of(whole)
    reads = [node for node in whole.graph.nodes if any(base(n).name in params for n in node.all_input_nodes)]
    found = (*outputs[:inputs], *(node for node in reads if node.op == "call_function"))
    return ancestors(node for node in found if isinstance(node, fx.Node))


def weight_half(
    whole: fx.GraphModule, first_outputs: int, tangents: frozenset[str], params: frozenset[str]
) -> tuple[set[fx.Node], set[fx.Node]]:
    """(nodes of the second half of `split_backward`, storages that it reads), where all that needs no tangent was
    computed before both."""
    outputs = outputs_of(whole)
    before = set(whole.graph.nodes) - depends_on(whole, tangents)
    early = _with_parts(whole, before | _input_half(whole, first_outputs, params))
    needed = ancestors(node for node in outputs[first_outputs:] if isinstance(node, fx.Node))
    late = {node for node in needed if node not in early and node.op != "placeholder"}
    return late, {base(node) for node in _crossing(late, outputs[first_outputs:]) if node.op != "get_attr"}


def _with_parts(whole: fx.GraphModule, early: set[fx.Node]) -> set[fx.Node]:
    """A part of an op's several results belongs where the op runs: tuples do not cross."""
    return early | {node for node in whole.graph.nodes if is_part(node) and node.args[0] in early}


def _crossing(late: set[fx.Node], outputs: list[object]) -> set[fx.Node]:
    """Values that the second part reads and does not compute; views among them bring in their bases."""
    queue = [node for user in late for node in user.all_input_nodes if node not in late]
    queue += [node for node in outputs if isinstance(node, fx.Node) and node not in late]
    found: set[fx.Node] = set()
    while queue:
        node = queue.pop()
        if node in found:
            continue
        found.add(node)
        if is_view(node):
            queue.extend(node.all_input_nodes)
    return found


class Sketch(fx.Graph):
    """A graph that is looked at and never run: its nodes are a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[fx.Node] = []

    @property
    def nodes(self) -> list[fx.Node]:  # type: ignore[override]
        return self.listed

    def output_node(self) -> fx.Node:
        return self.listed[-1]


class Unwritten(fx.GraphModule):
    """The module of a Sketch: it has no code, and no class of its own as other GraphModules have."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Unwritten:
        return object.__new__(cls)

    def __init__(self, graph: Sketch) -> None:
        nn.Module.__init__(self)
        self._graph = graph


def extract(
    whole: fx.GraphModule, inputs: list[fx.Node], inside: Iterable[fx.Node], outputs: list[object], run: bool = True
) -> fx.GraphModule:
    """A graph of its own: `inputs` become its placeholders, then `inside` in this order. run: or is only looked at."""
    given = set(inputs)
    order = [node for node in whole.graph.nodes if node.op == "get_attr"]
    order += [node for node in inside if node not in given and node.op not in ("placeholder", "get_attr")]
    if not run:
        return Unwritten(_sketch(inputs, order, outputs))
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        new[node] = graph.placeholder(node.name)
        new[node].meta = dict(node.meta)
    for node in order:
        new[node] = graph.node_copy(node, lambda old: new[old])
    graph.output(tuple(new[node] if isinstance(node, fx.Node) else None for node in outputs))
    graph.eliminate_dead_code()
    module = fx.GraphModule(whole, graph)
    module.graph.lint()
    return module


def _sketch(inputs: list[fx.Node], order: list[fx.Node], outputs: list[object]) -> Sketch:
    """The same nodes as those of a graph that is run, without what fx does for graphs that may be changed."""
    needed = {node for node in outputs if isinstance(node, fx.Node)}
    for node in reversed(order):
        if node in needed or (node.op == "call_function" and node.is_impure()):
            needed.add(node)
            needed.update(node.all_input_nodes)
    graph = Sketch()
    new: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        new[node] = fx.Node(graph, node.name, "placeholder", node.name, (), {})
    for node in order:
        if node in needed:
            args, kwargs = map_arg(node.args, new.__getitem__), map_arg(node.kwargs, new.__getitem__)
            new[node] = fx.Node(graph, node.name, node.op, node.target, args, kwargs)
    for node, copy in new.items():
        copy.meta = dict(node.meta)
    results = tuple(new[node] if isinstance(node, fx.Node) else None for node in outputs)
    graph.listed += [*new.values(), fx.Node(graph, "output", "output", "output", (results,), {})]
    return graph
