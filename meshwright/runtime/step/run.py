"""One plan, ready to be played: its instructions, what cuts its batches, and the interpreter on its parts.

A trainer may have several: of other sequence lengths, of a smaller last batch. They share parameters, gradients,
buffers and process groups with the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.capture.program import Program
from meshwright.plan import Instruction, Plan
from meshwright.runtime.step.batches import Batches
from meshwright.runtime.step.exchange import Exchange
from meshwright.runtime.step.interpreter import Interpreter
from meshwright.runtime.step.parts import Part, Place
from meshwright.runtime.step.ranges import Range, ranges_of
from meshwright.runtime.step.segments import Segments
from meshwright.runtime.watch import Watch
from meshwright.schedule.of_plan import plan_lists


@dataclass(frozen=True, slots=True)
class Run:
    plan: Plan
    program: Program
    stage: int
    instructions: tuple[Instruction, ...]
    batches: Batches
    ranges: dict[str, Range]
    interpreter: Interpreter

    def once_each(self) -> tuple[Instruction, ...]:
        """The list in which every segment runs forward once."""
        if not self.plan.order:
            return self.instructions
        return plan_lists(replace(self.plan, order=()), self.program)[self.stage]


@dataclass(frozen=True, slots=True)
class Maker:
    """What runs of one trainer are made with."""

    device: torch.device
    watch: Watch
    unit: str

    def make(
        self, plan: Plan, program: Program, parts: Callable[[Place], tuple[Part, ...]], buffers: dict[str, Tensor]
    ) -> Run:
        """parts: gives this rank's, where they run as the Place says."""
        stage = plan.stage_at(dist.get_rank()) if len(plan.stages) > 1 else 0
        instructions = plan_lists(plan, program)[stage]
        batches = Batches(plan, self.device)
        made = parts(Place(self.device, self.watch, instructions, self.unit))
        segments = Segments(program, made, Exchange(plan, program, made, self.device), buffers, batches)
        return Run(
            plan, program, stage, instructions, batches, ranges_of(program), Interpreter(segments, self.watch.at)
        )
