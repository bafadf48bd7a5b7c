"""What is compiled as one: a segment, or a run of segments; and which of the two a plan's segments want.

A call of a compiled unit costs the host the same however long the unit is, beside what its kernels cost to launch.
Where the device is busy longer than the host, that is hidden, and segments are as fast: they compile in a fraction of
the time, since those that are alike are compiled once. Where the host is the slower one, or near it, runs are faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meshwright.capture.program import Program
from meshwright.errors import RunError
from meshwright.generate.runs import Range, chains, divided
from meshwright.plan import Instruction, Plan, Stage
from meshwright.price.compute import op_seconds
from meshwright.price.flow import flow

UNITS = ("auto", "segment", "run")
NEAR = 0.5
"""Of the device's seconds: a host that needs so much is near enough to be in its way."""
FULL = 0.95
"""Of the memory that was planned for: above it segments stay apart, as they were priced."""


def check_unit(compile: bool | str) -> str:
    """`compile=` as one of UNITS, or nothing where it is not wanted."""
    if isinstance(compile, str) and compile not in UNITS:
        raise RunError(f"compile={compile!r}", f"True, False, or one of {', '.join(UNITS)}")
    return compile if isinstance(compile, str) else "auto" if compile else ""


def units(
    plan: Plan, program: Program, stage: Stage, instructions: Sequence[Instruction], device: torch.device, wanted: str
) -> list[Range]:
    """First and end of the stage's runs; segments that are in none are compiled each by itself."""
    if wanted == "segment" or (wanted == "auto" and not is_host_bound(plan, program, stage, device)):
        return []
    found = []
    for first, end in chains(plan, program, stage, instructions):
        own = range(first, end)
        kinds = [(program.segments[i].graph, program.segments[i].scalars, plan.segments[i]) for i in own]
        ops = [len(program.graphs[program.segments[i].graph].ops) for i in own]
        found += divided((first, end), kinds, ops)
    return found


def is_host_bound(plan: Plan, program: Program, stage: Stage, device: torch.device) -> bool:
    """Whether asking for a step's kernels takes near as long as running them; by the plan's figures of the device."""
    if device.type != "cuda" or _is_full(plan):
        return False
    device_s = host_s = 0.0
    for index in stage.segments:
        of_device_s, of_host_s = _seconds(plan, program, index)
        device_s, host_s = device_s + of_device_s, host_s + of_host_s
    return host_s >= NEAR * device_s


def _is_full(plan: Plan) -> bool:
    return plan.memory_bytes is not None and plan.predicted.peak_bytes > FULL * plan.memory_bytes


def _seconds(plan: Plan, program: Program, index: int) -> tuple[float, float]:
    """(the device's, the host's) of a micro-batch's forward and backward through a segment."""
    mesh, segment = plan.stage_of(index).mesh, program.segments[index]
    graph = program.graph(segment).at(plan.microbatch)
    values, found = graph.values(), flow(graph, plan.choice(index), mesh)
    device_s = host_s = 0.0
    for op in graph.ops:
        spent = op_seconds(op, found.strategies[op.name], values, mesh.sizes, mesh.device)
        device_s += spent.forward_s + spent.backward_s
        host_s += spent.forward_pair_s + spent.backward_pair_s
    return device_s, host_s
