"""Graph networks of `torch_geometric`: a batch is one graph, whose nodes are not independent of each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.zoo.entry import IGNORED, Batch, Case, Entry, three

NODES, EDGES, FEATURES, CLASSES = 32, 96, 12, 5


def _graph() -> Batch:
    labels = torch.randint(0, CLASSES, (NODES,))
    labels[::3] = IGNORED
    return {
        "x": torch.randn(NODES, FEATURES),
        "edge_index": torch.randint(0, NODES, (2, EDGES)),
        "labels": labels,
    }


def _case(kind: str, **settings: Any) -> Case:
    import torch_geometric

    model = getattr(torch_geometric.nn, kind)(FEATURES, 16, 2, CLASSES, **settings)
    return Case(model, three(_graph), nn.CrossEntropyLoss(ignore_index=IGNORED))


def _entry(name: str, build: Any, pins: tuple[str, ...] = ("zero=3", "tp=2")) -> Entry:
    return Entry(f"torch_geometric:{name}", "torch_geometric", build, pins)


ENTRIES = [
    _entry("GCN", lambda: _case("GCN", add_self_loops=False)),
    _entry("GCN-self-loops", lambda: _case("GCN")),  # drops the loops that there are: as many edges as the data says
    _entry("GraphSAGE", lambda: _case("GraphSAGE")),
    _entry("GAT", lambda: _case("GAT", heads=4, add_self_loops=False), ("tp=2", "zero=3")),
    _entry("GIN", lambda: _case("GIN")),
]
