"""Forward alone, as a model in eval mode does it: dropout off, BatchNorm by its running statistics, nothing updated."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.functional import BATCH_NORM
from meshwright.capture.program import SegmentGraph
from meshwright.rules.rule import LOWERINGS

BATCH_NORMS = (BATCH_NORM, f"{LOWERINGS}:batch_norm")


def in_eval_mode(graph: SegmentGraph) -> SegmentGraph:
    """A sharded segment as it is evaluated; BatchNorm that has its statistics needs nothing of other ranks."""
    ops = (
        replace(op, target=BATCH_NORM, kwargs=(("training", False),)) if op.target in BATCH_NORMS else op
        for op in graph.ops
    )
    return replace(graph, ops=tuple(ops), updates=())
