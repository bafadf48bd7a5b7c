"""Cutting a joint graph into forward and backward at a set of kept storages.

Backward is handed what is kept, parameters and gradients, and computes again whatever else it reads: each op at
most once, and as late as its first reader allows. A view is never kept: it is taken again from its base. Ops that
must not run twice (random numbers, side effects) are kept whatever was asked, and named with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import fx

from meshwright.caches import CACHES
from meshwright.cost.traced.storage import (
    ancestors,
    base,
    depends_on,
    is_part,
    is_statistic,
    is_view,
    outputs_of,
    producer,
    runs_once,
    written_to,
)
from meshwright.generate.communicates import collective_of
from meshwright.generate.joint import Joint
from meshwright.generate.split import Halves, extract


@dataclass(frozen=True, slots=True)
class Cut:
    """saved: names of what forward hands to backward. again: storages that backward makes anew, in order.

    forced: what was not to be kept and is, with the reason.
    """

    halves: Halves
    saved: tuple[str, ...]
    again: tuple[str, ...]
    forced: tuple[tuple[str, str], ...]


@CACHES.memoized(maxsize=64)
def read_by_backward(joint: Joint) -> tuple[fx.Node, ...]:
    """The storages that autograd would keep: those forward makes or is given, and backward reads."""
    early = _early(joint)
    late = _backward(joint, early)
    read = _reads(joint, late)
    found = {base(node) for node in read}
    return tuple(node for node in joint.module.graph.nodes if node in found and node.name not in joint.own)


def cut_at(joint: Joint, recompute: Collection[str] = (), keep: Collection[str] = (), run: bool = True) -> Cut:
    """Kept: what autograd would keep, less `recompute`, and `keep` besides; names as in `Joint.names`. run: the halves
    will be run, and not only looked at."""
    standard = [node for node in read_by_backward(joint) if joint.names[node] not in recompute]
    wanted = set(standard) | {node for node, name in joint.names.items() if name in keep}
    return cut(joint, wanted, run)


def cut(joint: Joint, kept: Collection[fx.Node], run: bool = True) -> Cut:
    """`kept`: storages, as nodes that are their own base. Those that backward has no use for are not handed over."""
    late = _tangent_side(joint)
    again: set[fx.Node] = set()
    saved: dict[fx.Node, str] = {}
    queue = list(_reads(joint, late))
    seen: set[fx.Node] = set()
    while queue:
        node = queue.pop()
        if node in seen or node.op == "get_attr" or node.name in joint.own:
            continue
        seen.add(node)
        if is_view(node):
            again.add(node)
            queue.extend(node.all_input_nodes)
            continue
        keeps = node in kept and not written_to(node)
        reason = "" if keeps else _must_keep(node)
        if keeps or reason:
            saved[node] = reason
            continue
        again.add(node)
        queue.extend(node.all_input_nodes)
    # An op that runs again makes all its results: none of them needs keeping, statistics aside.
    for node in list(saved):
        if is_part(node) and producer(node) in again and not is_statistic(node):
            del saved[node]
            again.add(node)
    order = [node for node in joint.module.graph.nodes if node in saved]
    inside = late | again
    own = [n for n in joint.module.graph.nodes if n.op == "placeholder" and n.name in joint.own]
    used = {base_ for node in inside for base_ in node.all_input_nodes}
    results = outputs_of(joint.module)[joint.forward_outputs :]
    used |= {node for node in results if isinstance(node, fx.Node)}
    own = [node for node in own if node in used]
    first = _first(joint, order, run)
    second = extract(joint.module, [*order, *own], _late_order(joint, late, again), results, run)
    halves = Halves(first, second, tuple(n.name for n in order), tuple(n.name for n in own))
    names = joint.names
    made = [n for n in second.graph.nodes if n.op == "call_function"]
    known = {node.name: name for node, name in names.items() if node in again}
    return Cut(
        halves,
        tuple(names[node] for node in order),
        tuple(known[node.name] for node in made if node.name in known),
        tuple((names[node], reason) for node, reason in saved.items() if reason and reason != _GIVEN),
    )


_GIVEN = "it is given to the segment"


def _must_keep(node: fx.Node) -> str:
    if node.op == "placeholder":
        return _GIVEN
    return runs_once(producer(node))


def _early(joint: Joint) -> set[fx.Node]:
    found = ancestors(_nodes(outputs_of(joint.module)[: joint.forward_outputs]))
    return found | {node for node in joint.module.graph.nodes if is_part(node) and node.args[0] in found}


def _backward(joint: Joint, early: set[fx.Node]) -> set[fx.Node]:
    needed = ancestors(_nodes(outputs_of(joint.module)[joint.forward_outputs :]))
    return {node for node in needed if node not in early and node.op not in ("placeholder", "get_attr")}


@CACHES.memoized(maxsize=64)
def _tangent_side(joint: Joint) -> frozenset[fx.Node]:
    """What backward alone can compute: it depends on a gradient."""
    needed = ancestors(_nodes(outputs_of(joint.module)[joint.forward_outputs :]))
    late = depends_on(joint.module, joint.tangents)
    return frozenset(node for node in late if node in needed and node.op != "placeholder")


def _reads(joint: Joint, late: Set[fx.Node]) -> set[fx.Node]:
    found = {node for user in late for node in user.all_input_nodes if node not in late}
    results = _nodes(outputs_of(joint.module)[joint.forward_outputs :])
    found |= {node for node in results if node not in late}
    return {node for node in found if node.name not in joint.own and node.op != "get_attr"}


def _nodes(items: Iterable[object]) -> list[fx.Node]:
    return [item for item in items if isinstance(item, fx.Node)]


def _first(joint: Joint, saved: list[fx.Node], run: bool) -> fx.GraphModule:
    outputs = [*outputs_of(joint.module)[: joint.forward_outputs], *saved]
    inputs = [n for n in joint.module.graph.nodes if n.op == "placeholder" and n.name not in joint.tangents]
    inside = ancestors(_nodes(outputs))
    return extract(joint.module, inputs, [n for n in joint.module.graph.nodes if n in inside], outputs, run)


def _late_order(joint: Joint, late: frozenset[fx.Node], again: set[fx.Node]) -> list[fx.Node]:
    """Backward in its own order, but a linear's weight gradient before its input's; what it computes again stands right
    before the first that reads it."""
    position = {node: index for index, node in enumerate(joint.module.graph.nodes)}
    found: dict[fx.Node, None] = {}

    def bring(node: fx.Node) -> None:
        missing = sorted(_missing(node, again, found), key=position.__getitem__)
        found.update(dict.fromkeys(missing))

    first = _weights_first(joint, late)
    for node in joint.module.graph.nodes:
        for other in (*first.get(node, ()), node):
            if other in late and other not in found:
                bring(other)
                found[other] = None
    for node in _nodes(outputs_of(joint.module)[joint.forward_outputs :]):
        if node in again and node not in found:
            bring(node)
            found[node] = None
    return list(found)


@CACHES.memoized(maxsize=64)
def _weights_first(joint: Joint, late: frozenset[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """By product that makes an input's gradient: what makes the weight's. That frees the linear's input before a
    gradient of its size is allocated. Not where ranks communicate: that overlaps with the weight's gradient."""
    products = [node for node in joint.module.graph.nodes if node in late and node.target is torch.ops.aten.mm.default]
    found: dict[fx.Node, list[fx.Node]] = {}
    for inputs, weights in pairwise(products):
        (gradient, weight), (turned, read) = (
            (node.all_input_nodes[0], node.all_input_nodes[-1]) for node in (inputs, weights)
        )
        own = [base(other).name in joint.own for other in (weight, read)]
        if base(gradient) is base(turned) and own == [True, False] and base(read) not in late:
            found[inputs] = [*_views_to(turned), *_views_to(read), weights]
    return {} if any(map(collective_of, late)) else found


def _views_to(node: fx.Node) -> list[fx.Node]:
    """The views on the way from a storage to this one."""
    found = []
    while is_view(node):
        found.append(node)
        node = node.all_input_nodes[0]
    return found[::-1]


def _missing(node: fx.Node, again: set[fx.Node], found: dict[fx.Node, None]) -> set[fx.Node]:
    """What must be computed again before `node` runs, and was not yet."""
    queue, missing = list(node.all_input_nodes), set[fx.Node]()
    while queue:
        other = queue.pop()
        if other in again and other not in found and other not in missing:
            missing.add(other)
            queue.extend(other.all_input_nodes)
            # All results of an op are taken at once: one left in the tuple would hold the others.
            queue.extend(user for user in other.users if is_part(user))
    return missing
