"""The nodes a reduction left, as a `Problem` of their own."""

from __future__ import annotations

import numpy as np

from meshwright.select.graph import Graph
from meshwright.select.problem import Floats, Ints, Problem, join, running


def flatten(graph: Graph, nodes: list[int] | None = None) -> tuple[Problem, list[int]]:
    """The problem over `nodes` (all that are left, if not given) and the graph's name of each of its nodes."""
    ids = sorted(graph.cost) if nodes is None else nodes
    place = {node: i for i, node in enumerate(ids)}
    offsets = running([len(graph.cost[node]) for node in ids])
    edges = [(place[a], place[b], graph.adj[a][b]) for a in ids for b in sorted(graph.adj[a]) if a < b]
    option, begin, end, size = _uses(graph, ids, offsets)
    problem = Problem(
        offsets=offsets,
        costs=join([graph.cost[node] for node in ids]),
        edge_nodes=np.array([(a, b) for a, b, _ in edges], dtype=np.int64).reshape(-1, 2),
        edge_offsets=running([matrix.size for _, _, matrix in edges]),
        edge_costs=join([matrix.reshape(-1) for _, _, matrix in edges]),
        limits=graph.limits.copy(),
        use_option=option,
        use_begin=begin,
        use_end=end,
        use_bytes=size,
    )
    return problem, ids


def _uses(graph: Graph, ids: list[int], offsets: Ints) -> tuple[Ints, Ints, Ints, Floats]:
    parts = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))]
    for offset, node in zip(offsets.tolist(), ids, strict=False):
        use = graph.use[node]
        option, item = np.nonzero(use.bytes.T)
        parts.append((offset + option, use.begin[item], use.end[item], use.bytes[item, option]))
    option, begin, end, size = (np.concatenate(column) for column in zip(*parts, strict=True))
    return option, begin, end, size
