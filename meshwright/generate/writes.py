"""Traced graphs without ops that write to an argument."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from meshwright.torch_compat import (
    functional,
    functional_overload,
    mutating,
    shares_storage,
    writes_argument,
    written_names,
)


def without_writes(traced: GraphModule, inputs: list[Tensor], mode: AbstractContextManager[Any]) -> GraphModule:
    """Replaced one by one where nobody else sees what is written; else the whole graph is traced once more."""
    if mutating(traced):
        with mode:
            _replace_writes(traced)
    return functional(traced, inputs, mode)


def _replace_writes(traced: GraphModule) -> None:
    """Ops that write to a result of which there is no view, as `rms_norm` adds its `eps`, become ops that make another
    one. It is what `functionalize` does, which traces the whole graph once more."""
    order = {node: number for number, node in enumerate(traced.graph.nodes)}
    for node in order:
        if node.op != "call_function" or not writes_argument(node.target):
            continue
        target, given = functional_overload(node.target), node.args[0] if node.args else None
        if target is None or written_names(node.target) != ("self",) or not isinstance(given, Node):
            continue
        if not _is_seen_here_alone(given, node, order):
            continue
        new, old = target(*_values(node.args), **_values(node.kwargs)), node.meta["val"]
        if (new.shape, new.dtype, new.stride()) != (old.shape, old.dtype, old.stride()):
            continue
        node.target, node.meta["val"] = target, new
        for user in [user for user in given.users if order[user] > order[node]]:
            user.replace_input_with(given, node)
    traced.recompile()


def _is_seen_here_alone(given: Node, writer: Node, nodes: Iterable[Node]) -> bool:
    """Whether nobody has the memory that is written to but the op that made it and the one that writes."""
    if given.op != "call_function" or not all("val" in node.meta for node in given.all_input_nodes):
        return False
    there = [node for node in nodes if any(shares_storage(one, given.meta["val"]) for one in _tensors(node))]
    return there == [given, writer]


def _tensors(node: Node) -> list[Tensor]:
    found = node.meta.get("val")
    return [one for one in (found if isinstance(found, list | tuple) else [found]) if isinstance(one, Tensor)]


def _values(arguments: Any) -> Any:
    return map_arg(arguments, lambda node: node.meta["val"])
