"""A traced graph's calls as one would write them by hand: fewer views, and functions that cost the host less.

A trace detaches every argument, turns weights round twice and takes the same view for every reader; each of these costs
as much host time as a small kernel. `torch.mm` is the same op as `torch.ops.aten.mm.default`, called in half the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from meshwright.cost.traced.storage import is_view

aten = torch.ops.aten


def group_norm(x: Tensor, *rest: Any) -> Any:
    """`native_group_norm`, which reads memory in order, of a value that may lie otherwise than it was traced."""
    return torch.native_group_norm(_in_order(x, x), *rest)


def group_norm_backward(gradient: Tensor, x: Tensor, *rest: Any) -> Any:
    lies = _in_order(x, x)
    return aten.native_group_norm_backward(_in_order(gradient, lies), lies, *rest)


def _in_order(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor in rows, or channels last where `like` lies so."""
    images = not like.is_contiguous() and like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return tensor.contiguous(memory_format=torch.channels_last if images else torch.contiguous_format)


QUICK: dict[object, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.clone.default: torch.clone,
    aten.div.Tensor: torch.div,
    aten.embedding.default: torch.embedding,
    aten.expand.default: torch.Tensor.expand,
    aten.gelu.default: F.gelu,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    aten.native_layer_norm.default: torch.native_layer_norm,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.reshape.default: torch.reshape,
    aten.select.int: torch.select,
    aten.sigmoid.default: torch.sigmoid,
    aten.sub.Tensor: torch.sub,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
}
"""Functions that call the same op, with the same arguments (in order in memory, where the op relies on it)."""


def plainly(graph: fx.Graph) -> None:
    """Rewrite it in place. Results are the same numbers; only views are left out, so no memory is held longer."""
    seen: dict[object, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten.view.default:
            # It may meet other strides than were promised (those of a BatchNorm's result), and copies then.
            node.target = aten.reshape.default
        kept = _without(node)
        if kept is None and is_view(node):
            kept = seen.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
        if kept is not None and kept is not node:
            node.replace_all_uses_with(kept)
            graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and is_view(node):
            graph.erase_node(node)
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = QUICK.get(node.target, node.target)


def _without(node: fx.Node) -> fx.Node | None:
    """What may stand in place of a view."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if node.target is aten.detach.default:
        return source
    if node.target is aten.t.default and source.target is aten.t.default:
        before = source.args[0]
        return before if isinstance(before, fx.Node) else None
    if node.target is aten.reshape.default and source.target is aten.reshape.default:
        node.args = (source.args[0], *node.args[1:])
    return None
