"""Running a Program on real tensors, segment by segment, with autograd: the reference for everything later."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping

import torch
from torch import Tensor

from meshwright.capture.program import Program, SegmentGraph
from meshwright.capture.targets import call


def run_graph(graph: SegmentGraph, arguments: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Every value of a graph whose batch is fixed, by its local name."""
    values = dict(arguments)
    for op in graph.ops:
        results = call(op, values, device)
        values.update((value.name, tensor) for value, tensor in zip(op.results, results, strict=True))
    return values


def run(
    program: Program, tensors: Mapping[str, Tensor], batch: Mapping[str, Tensor], device: torch.device
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, buffers after the step). `tensors`: parameters and buffers by name; `batch`: inputs by name."""
    values = dict(batch)
    buffers = {buffer.name: tensors[buffer.name] for buffer in program.buffers}
    found = run_graph(program.prologue.at(program.batch), values | buffers, device)
    values.update((name, found[name]) for name in program.shared_values)
    fixed = [graph.at(program.batch) for graph in program.graphs]
    known = ChainMap(values, buffers, dict(tensors))
    for segment in program.segments:
        graph = fixed[segment.graph].bind(segment.scalars)
        names = (*segment.inputs, *segment.shared_values, *segment.params, *segment.buffers)
        pairs = zip(graph.arguments(), names, strict=True)
        found = run_graph(graph, {value.name: known[name] for value, name in pairs}, device)
        values.update(zip(segment.outputs, (found[name] for name in graph.outputs), strict=True))
        local = dict(zip((v.name for v in graph.buffers), segment.buffers, strict=True))
        buffers.update((local[buffer], found[value]) for buffer, value in graph.updates)
    return values[program.loss], buffers
