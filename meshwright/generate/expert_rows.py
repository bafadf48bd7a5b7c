"""Sizes that only the data tells, for those who count: rows sent to experts, as if every expert had the same number.

The graph itself keeps its symbols; what a traced node says of its result (`meta`) gets numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from meshwright.torch_compat import fake_like, symbolic_value

TRAVEL = "meshwright.exchange_rows.default"


def fix_expert_rows(traced: fx.GraphModule) -> None:
    """A rank receives as many rows as it sends."""
    travels = [node for node in traced.graph.nodes if str(node.target) == TRAVEL]
    if not travels:
        return
    sent = [node.all_input_nodes[0].meta["val"].shape[0] for node in travels]
    rows = max(count for count in sent if isinstance(count, int))
    for node in traced.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = _fixed(node.meta["val"], rows)


def _fixed(value: Any, rows: int) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_fixed(part, rows) for part in value)
    if not isinstance(value, Tensor) or not any(isinstance(size, torch.SymInt) for size in value.shape):
        return value
    return fake_like(value, _numbers(value.shape, rows), _numbers(value.stride(), rows))


def _numbers(sizes: tuple[Any, ...], rows: int) -> list[int]:
    return [symbolic_value(size, rows) or 0 if isinstance(size, torch.SymInt) else size for size in sizes]
