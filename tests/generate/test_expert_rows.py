"""Rows that travel to experts: counted as if all had the same number, without a number in the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.cost.traced.storage import base, is_part, storage_bytes
from meshwright.generate.expert_rows import fix_expert_rows
from meshwright.layout.collectives import exchange_rows
from meshwright.torch_compat import fake_mode, fake_tensor, trace_joint


def test_rows_that_arrive_are_counted_as_those_sent() -> None:
    def there_and_back(rows: Tensor, counts: Tensor) -> list[Tensor]:
        held = exchange_rows(rows, counts, 12, "ep", 2, False)
        left, right = (held * 2).split(2, dim=1)
        return [exchange_rows(left + right, counts, 12, "ep", 2, True)]

    mode = fake_mode()
    inputs = [fake_tensor((12, 4), torch.float32, mode), fake_tensor((2, 4), torch.int64, mode)]
    traced = trace_joint(there_and_back, inputs, mode)
    before = traced.code
    open_nodes = [
        node
        for node in traced.graph.nodes
        if any(isinstance(n, torch.SymInt) for n in getattr(_val(node), "shape", ()))
    ]
    assert open_nodes
    fix_expert_rows(traced)
    assert traced.code == before
    assert [storage_bytes(node) for node in open_nodes if base(node) is node and not is_part(node)][:2] == [192, 192]
    assert [tuple(_val(node).shape) for node in open_nodes][:2] == [(12, 4), (12, 4)]


def _val(node: torch.fx.Node) -> object:
    return node.meta.get("val")
