"""What a run of segments needs of the batch and of the prologue: each stage makes and reads its own."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.op import live
from meshwright.capture.program import Program, SegmentGraph


def stage_shared_values(program: Program, first: int, end: int) -> tuple[str, ...]:
    """The prologue's results that segments [first, end) read, in the Program's order."""
    read = {name for segment in program.segments[first:end] for name in segment.shared_values}
    return tuple(name for name in program.shared_values if name in read)


def stage_prologue(program: Program, first: int, end: int) -> SegmentGraph:
    """The part of the prologue that makes them; its outputs stand in the order of `stage_shared_values`."""
    wanted = set(stage_shared_values(program, first, end))
    graph = program.prologue
    pairs = zip(program.shared_values, graph.outputs, strict=True)
    outputs = tuple(output for name, output in pairs if name in wanted)
    ops = tuple(live(graph.ops, outputs))
    read = {name for op in ops for name in op.uses()} | set(outputs)
    return replace(
        graph,
        shared_values=tuple(value for value in graph.shared_values if value.name in read),
        buffers=tuple(value for value in graph.buffers if value.name in read),
        ops=ops,
        outputs=outputs,
    )


def stage_inputs(program: Program, first: int, end: int) -> tuple[str, ...]:
    """The batch tensors that segments [first, end) or their part of the prologue read."""
    read = {name for segment in program.segments[first:end] for name in segment.shared_values}
    read |= {value.name for value in stage_prologue(program, first, end).shared_values}
    return tuple(value.name for value in program.inputs if value.name in read)
