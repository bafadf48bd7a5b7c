"""What is compiled as one: a segment, or a run of segments; and which of the two a plan's segments want.

On a GPU runs are the faster ones: a call costs the host the same however long a unit is, and what ends one segment is
fused with what begins the next (gpt2-medium on an H200: 43.8 ms a step in runs, 45.0 ms in segments). Segments that are
alike are compiled once, so they are ready sooner (16 s there, against 43 s). A plan that fills its memory keeps to
segments, as which it was priced. On a CPU calls cost nothing next to what they run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meshwright.capture.program import Program
from meshwright.errors import RunError
from meshwright.generate.runs import Range, chains, divided
from meshwright.plan import Instruction, Plan, Stage

UNITS = ("auto", "segment", "run")
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
    if wanted == "segment" or (wanted == "auto" and (device.type != "cuda" or _is_full(plan))):
        return []
    found = []
    for first, end in chains(plan, program, stage, instructions):
        own = range(first, end)
        kinds = [(program.segments[i].graph, program.segments[i].scalars, plan.segments[i]) for i in own]
        ops = [len(program.graphs[program.segments[i].graph].ops) for i in own]
        found += divided((first, end), kinds, ops)
    return found


def _is_full(plan: Plan) -> bool:
    return plan.memory_bytes is not None and plan.predicted.peak_bytes > FULL * plan.memory_bytes
