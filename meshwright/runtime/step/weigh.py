"""How much each micro-batch weighs in the loss: as many targets as it has that count, or all alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from meshwright.capture.averaging import Averaging, averaging
from meshwright.capture.execute import run_graph
from meshwright.capture.op import live
from meshwright.capture.program import Program, SegmentGraph
from meshwright.generate.program import Generated
from meshwright.layout.collectives import all_reduce
from meshwright.plan import Plan


class Weigher:
    """A number per micro-batch, alike on every rank; they add up to 1 unless the loss is a sum."""

    def __init__(
        self,
        program: Program,
        generated: Sequence[Generated],
        plan: Plan,
        device: torch.device,
    ) -> None:
        """generated: those of the last stage, of all micro-batches and of a smaller last one; none on ranks that have
        no part in it and are told the numbers."""
        self.device, self.plan = device, plan
        self.found = averaging(program) if plan.microbatches > 1 else Averaging("mean")
        self.counters = [_Counter(program, one, self.found) for one in generated] if self.counts else []

    @property
    def counts(self) -> bool:
        """Whether the data says how much a micro-batch weighs."""
        return self.found.kind == "count"

    def by_samples(self) -> list[float]:
        """Where it does not."""
        rows = [part.microbatch for part, times in self.plan.cut for _ in range(times)]
        return [1.0 if self.found.kind == "sum" else own / self.plan.batch for own in rows]

    def weights(self, batches: Sequence[Mapping[str, Tensor]], buffers: Mapping[str, Tensor]) -> list[float]:
        last = len(batches) - 1
        found = []
        for number, batch in enumerate(batches):
            counter = self.counters[-1 if number == last else 0]
            found.append(counter.count(dict(batch) | dict(buffers), self.device))
        counts = torch.stack(found)
        if self.counters[0].axis:
            counts = all_reduce(counts, self.counters[0].axis)
        total = counts.sum()
        # Where no target counts at all, one process divides zero by zero, and so do we.
        return [count / total.item() if total else float("nan") for count in counts.tolist()]


class _Counter:
    """Of micro-batches of one size: how many targets count."""

    def __init__(self, program: Program, generated: Generated, found: Averaging) -> None:
        graph = generated.sharded[len(program.segments) - 1]
        op = next(op for op in graph.ops if op.name == found.op)
        self.targets, self.axis = op.operands()[1], str(dict(op.kwargs).get("rows", ""))
        self.graph, self.ignored = only(graph, {self.targets}), found.ignored
        bound = zip(graph.shared_values, program.segments[-1].shared_values, strict=True)
        self.names = {value.name: name for value, name in bound}
        read = {name for op in self.graph.ops for name in op.uses()} | {self.targets}
        self.prologue = only(generated.prologue, {self.names[name] for name in read if name in self.names})

    def count(self, values: dict[str, Tensor], device: torch.device) -> Tensor:
        values |= run_graph(self.prologue, values, device)
        bound = {local: values[name] for local, name in self.names.items() if name in values}
        targets = run_graph(self.graph, bound, device)[self.targets]
        return (targets != self.ignored).sum()


def only(graph: SegmentGraph, wanted: set[str]) -> SegmentGraph:
    """The graph without the ops that the wanted values do not need."""
    return replace(graph, ops=tuple(live(graph.ops, wanted)))
