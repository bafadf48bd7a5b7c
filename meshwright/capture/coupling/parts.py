"""Whether a program may be run in micro-batches at all."""

from __future__ import annotations

from meshwright.capture.program import Coupling, Program
from meshwright.errors import PlanError

STATISTICS = "takes its statistics over the batch"
"""What BatchNorm does. In micro-batches it takes them over each: known to all who train so, and done where it is asked
for. Whatever else couples samples would train something else without a sign of it."""


def check_in_parts(program: Program, microbatches: int) -> None:
    """Raises PlanError where so many micro-batches would compute something else."""
    found = [coupling for coupling in program.couples_samples if not may_be_asked_for(coupling)]
    if microbatches < 2 or not found:
        return
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    raise PlanError(
        f"{microbatches} micro-batches of a model in which {found[0]}{more}",
        "one micro-batch, where samples are coupled",
        "plan with one micro-batch (leave the pin out); of BatchNorm alone, more may be asked for",
    )


def may_be_asked_for(coupling: Coupling) -> bool:
    return coupling.why == STATISTICS
