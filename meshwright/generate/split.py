"""Cutting a traced graph in two: what the first part hands to the second is what is *saved*.

Views are never saved: the second part takes the view again from its base.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "t.default", "transpose.int", "permute.default", "expand.default",
        "unsqueeze.default", "squeeze.dim", "squeeze.dims", "slice.Tensor", "select.int", "alias.default",
        "detach.default", "as_strided.default", "split.Tensor", "unbind.int", "view_as.default",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Halves:
    """first(*placeholders) -> (*first outputs, *saved); second(*saved, *own placeholders) -> second outputs.

    saved and own: names of nodes of the whole graph, in the order in which they are passed.
    """

    first: fx.GraphModule
    second: fx.GraphModule
    saved: tuple[str, ...]
    own: tuple[str, ...]


def split(
    whole: fx.GraphModule, first_outputs: int, own: frozenset[str], late_only: frozenset[str] = frozenset()
) -> Halves:
    """The first part computes the first `first_outputs` outputs and nothing that only the others need.

    `own`: placeholders that the second part is handed anew (tangents, parameters) and that are not saved.
    `late_only`: those that the first part is not handed at all (tangents).
    """
    outputs = list(_output(whole).args[0])  # type: ignore[arg-type]
    early = _ancestors(node for node in outputs[:first_outputs] if isinstance(node, fx.Node))
    # A part of an op's several results belongs where the op runs: tuples do not cross.
    early |= {node for node in whole.graph.nodes if _is_part(node) and node.args[0] in early}
    needed = _ancestors(node for node in outputs[first_outputs:] if isinstance(node, fx.Node))
    placeholders = [node for node in whole.graph.nodes if node.op == "placeholder"]
    late = {node for node in needed if node not in early and node.op != "placeholder"}
    crossing = _crossing(late, outputs[first_outputs:])
    again = {node for node in crossing if _is_view(node)}
    saved = [
        n for n in whole.graph.nodes if n in crossing and n not in again and n.name not in own and n.op != "get_attr"
    ]
    used = [node for node in placeholders if node in crossing and node.name in own]
    first = _extract(
        whole, [n for n in placeholders if n.name not in late_only], early, [*outputs[:first_outputs], *saved]
    )
    second = _extract(whole, [*saved, *used], late | again, outputs[first_outputs:])
    return Halves(first, second, tuple(node.name for node in saved), tuple(node.name for node in used))


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
        if _is_view(node):
            queue.extend(node.all_input_nodes)
    return found


def _is_part(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def _is_view(node: fx.Node) -> bool:
    if _is_part(node):
        return isinstance(node.args[0], fx.Node) and str(node.args[0].target) in VIEWS
    return node.op == "call_function" and str(node.target) in VIEWS


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    queue, found = list(nodes), set[fx.Node]()
    while queue:
        node = queue.pop()
        if node not in found:
            found.add(node)
            queue.extend(node.all_input_nodes)
    return found


def _extract(
    whole: fx.GraphModule, inputs: list[fx.Node], inside: set[fx.Node], outputs: list[object]
) -> fx.GraphModule:
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        new[node] = graph.placeholder(node.name)
        new[node].meta = dict(node.meta)
    for node in whole.graph.nodes:
        if node.op == "get_attr" or (node in inside and node not in new and node.op != "placeholder"):
            new[node] = graph.node_copy(node, lambda old: new[old])
    graph.output(tuple(new[node] if isinstance(node, fx.Node) else None for node in outputs))
    graph.eliminate_dead_code()
    module = fx.GraphModule(whole, graph)
    module.graph.lint()
    return module


def _output(whole: fx.GraphModule) -> fx.Node:
    return whole.graph.output_node()
