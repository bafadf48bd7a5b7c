"""How much each micro-batch weighs in the loss: as many targets as it has that count, or all alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from meshwright.capture.averaging import Averaging, averaging
from meshwright.capture.execute import run_graph
from meshwright.capture.program import Program, SegmentGraph
from meshwright.generate.program import Generated
from meshwright.layout.collectives import all_reduce
from meshwright.plan.stages import needed_ops


class Weigher:
    """A number per micro-batch, alike on every rank; they add up to 1 unless the loss is a sum."""

    def __init__(self, program: Program, generated: Generated | None, microbatches: int, device: torch.device) -> None:
        """generated: that of the last stage; None on ranks that have no part in it and are told the numbers."""
        self.device, self.commons = device, program.commons
        self.found = averaging(program) if microbatches > 1 else Averaging("mean")
        if self.found.kind != "count" or generated is None:
            return
        graph = generated.sharded[len(program.segments) - 1]
        op = next(op for op in graph.ops if op.name == self.found.op)
        self.targets, self.axis = op.operands()[1], str(dict(op.kwargs).get("rows", ""))
        self.graph = only(graph, {self.targets})
        bound = zip(graph.commons, program.segments[-1].commons, strict=True)
        self.names = {value.name: name for value, name in bound}
        read = {name for op in self.graph.ops for name in op.uses()} | {self.targets}
        self.prologue = only(generated.prologue, {self.names[name] for name in read if name in self.names})

    @property
    def counts(self) -> bool:
        """Whether the data says how much a micro-batch weighs."""
        return self.found.kind == "count"

    def alike(self, microbatches: int) -> list[float]:
        """Where it does not."""
        return [1.0 if self.found.kind == "sum" else 1.0 / microbatches] * microbatches

    def weights(self, batches: Sequence[Mapping[str, Tensor]], buffers: Mapping[str, Tensor]) -> list[float]:
        counts = torch.stack([self._count(dict(batch), buffers) for batch in batches])
        if self.axis:
            counts = all_reduce(counts, self.axis)
        total = counts.sum()
        # Where no target counts at all, one process divides zero by zero, and so do we.
        return [count / total.item() if total else float("nan") for count in counts.tolist()]

    def _count(self, values: dict[str, Tensor], buffers: Mapping[str, Tensor]) -> Tensor:
        values |= run_graph(self.prologue, values | dict(buffers), self.device)
        bound = {local: values[name] for local, name in self.names.items() if name in values}
        targets = run_graph(self.graph, bound, self.device)[self.targets]
        return (targets != self.found.ignored).sum()


def only(graph: SegmentGraph, wanted: set[str]) -> SegmentGraph:
    """The graph without the ops that the wanted values do not need."""
    return replace(graph, ops=needed_ops(graph, wanted))
