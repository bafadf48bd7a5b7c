"""Which segments read what others make."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.schedule.pipeline import Reads


def reads_of(program: Program) -> Reads:
    """Who reads whose values."""
    made = {name: index for index, segment in enumerate(program.segments) for name in segment.outputs}
    pairs = {(made[name], index) for index, segment in enumerate(program.segments) for name in segment.inputs}
    return tuple(sorted(pairs))
