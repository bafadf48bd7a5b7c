"""Weights of micro-batches: the number of targets of each, summed over the ranks that share it."""

from __future__ import annotations

from meshwright.capture.averaging import averaging
from meshwright.capture.program import Program
from meshwright.layout import Collective
from meshwright.plan import Plan
from meshwright.price.flow import flow

COUNT_BYTES = 8


def count_collectives(plan: Plan, program: Program) -> tuple[Collective, ...]:
    """The all-reduce of one number per micro-batch, where the loss is a mean over sharded targets."""
    if plan.microbatches == 1:
        return ()
    found = averaging(program)
    if found.kind != "count":
        return ()
    last = len(program.segments) - 1
    graph = program.graph(program.segments[last]).at(plan.microbatch)
    mesh = plan.stages[-1].mesh
    made = flow(graph, plan.choice(last), mesh, plan.common_layouts(program, last)).strategies[found.op]
    axis = str(dict(made.lowering.kwargs).get("rows", ""))
    return (Collective("all_reduce", axis, COUNT_BYTES * plan.microbatches),) if axis else ()
