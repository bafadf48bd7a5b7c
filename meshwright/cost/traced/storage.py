"""Which nodes of a traced graph are memory of their own, and which may run a second time.

A *storage* is named by the node that makes it: views and `getitem`s of views stand for their base.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import Tensor, fx

from meshwright.caches import CACHES
from meshwright.torch_compat import argument_position, returns_view, writes_argument

COPIES_NOTHING = frozenset({"aten._unsafe_view.default", "aten._reshape_alias.default"})
"""Ops that hand on their argument's memory though their schema does not say so."""

REPEATABLE = frozenset({"aten", "prims", "meshwright", "_c10d_functional", "transformers"})
"""Namespaces whose ops give the same result again, unless they say otherwise."""

WRITES_UNSAID = frozenset({"aten.native_batch_norm.default", "aten.cudnn_batch_norm.default"})
"""Ops that write to their fourth and fifth argument (running statistics) though their schema does not say so."""


STATISTIC = 256
"""How many times smaller than its op's largest result a statistic is."""


def is_part(node: fx.Node) -> bool:
    """One of the several results of an op."""
    return node.op == "call_function" and node.target is operator.getitem


def is_view(node: fx.Node) -> bool:
    """Whether the node's result lies in the memory of its first argument."""
    if is_part(node):
        source = node.args[0]
        return isinstance(source, fx.Node) and is_view(source)
    return node.op == "call_function" and _hands_on(node.target)


@CACHES.memoized(maxsize=4096)
def _hands_on(target: object) -> bool:
    return returns_view(target) or str(target) in COPIES_NOTHING


def base(node: fx.Node) -> fx.Node:
    """The node whose memory this one's result lies in."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def bases(nodes: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """`base` of each node of a graph, which are given in order."""
    found: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        found[node] = found[node.all_input_nodes[0]] if is_view(node) else node
    return found


def producer(node: fx.Node) -> fx.Node:
    """The call that makes the storage `node`: itself, or the op of which it is one result."""
    return node.all_input_nodes[0] if is_part(node) else node


def is_statistic(node: fx.Node) -> bool:
    """A small result next to a large one (a norm's statistics): kept even where its op runs again, since what reads it
    then need not wait for that."""
    if not is_part(node):
        return False
    sizes = [storage_bytes(other) for other in producer(node).users if is_part(other)]
    return 0 < storage_bytes(node) <= max(sizes) // STATISTIC


def storage_bytes(node: fx.Node) -> int:
    """Of a node that is its own base; nothing for an op with several results, whose parts count."""
    value = node.meta.get("val")
    return value.untyped_storage().nbytes() if isinstance(value, Tensor) else 0


def made_by(node: fx.Node) -> list[fx.Node]:
    """The storages that a node brings into being: an op with several results makes its parts."""
    if is_part(node) or is_view(node):
        return []
    return [user for user in node.users if is_part(user)] or [node]


def left_bytes(node: fx.Node) -> int:
    """Results that nobody takes: they go as soon as the others are taken."""
    value = node.meta.get("val")
    if not isinstance(value, list | tuple) or is_view(node):
        return 0
    taken = {user.args[1] for user in node.users if is_part(user)}
    left = [item for index, item in enumerate(value) if index not in taken and isinstance(item, Tensor)]
    return sum(item.untyped_storage().nbytes() for item in left)


def written_to(node: fx.Node) -> bool:
    """Whether some op writes to this storage: what is kept of it would not be what its other readers saw."""
    return any(
        str(user.target) in WRITES_UNSAID and node in user.args[3:5]
        for user in node.users
        if user.op == "call_function"
    )


def depends_on(module: fx.GraphModule, names: frozenset[str]) -> set[fx.Node]:
    """The nodes that are computed from these placeholders, themselves included."""
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        if (node.op == "placeholder" and node.name in names) or any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    queue, found = list(nodes), set[fx.Node]()
    while queue:
        node = queue.pop()
        if node not in found:
            found.add(node)
            queue.extend(node.all_input_nodes)
    return found


def outputs_of(module: fx.GraphModule) -> list[object]:
    return list(module.graph.output_node().args[0])  # type: ignore[arg-type]


def runs_once(node: fx.Node) -> str:
    """Why an op must not run a second time; empty where it may."""
    if node.op != "call_function" or is_part(node):
        return ""
    if not hasattr(node.target, "tags"):
        return ""
    if writes_argument(node.target):
        return "it writes to an argument"
    if torch.Tag.nondeterministic_seeded in node.target.tags and _draws(node):
        return "it draws random numbers"
    if str(node.target).partition(".")[0] not in REPEATABLE:
        return "nothing says that it gives the same result again"
    return ""


def _draws(node: fx.Node) -> bool:
    """A fused attention without dropout is tagged as random, and is not."""
    index = argument_position(node.target, "dropout_p")
    if index is None:
        return True
    return bool(node.args[index] if index < len(node.args) else node.kwargs.get("dropout_p", 0.0))
