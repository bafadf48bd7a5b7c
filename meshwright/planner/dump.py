"""The selection problem behind a plan, for `meshwright plan --dump-problem FILE` and `meshwright solve FILE`."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.pins.methods import pinned_method
from meshwright.pins.offload import pinned_offload
from meshwright.pins.stages import pipeline_pins
from meshwright.plan import Plan
from meshwright.planner.chain.exact import whole_problem
from meshwright.planner.space.candidates import candidates_on
from meshwright.price.parameter import Setting
from meshwright.select.contest import dump, split_intervals


def dump_problem(plan: Plan, program: Program, path: str) -> None:
    """Writes the selection problem of the whole chain on the plan's mesh, at its number of micro-batches.

    Everything is kept: the problem has no recomputation. Costs are scaled seconds; rows are bytes per device.
    """
    if len(plan.stages) > 1:
        raise PlanError(f"--dump-problem of a plan of {len(plan.groups)} stages", "one stage", "add --pin pp=1")
    rest = pipeline_pins(pinned_offload(pinned_method(plan.pins)[1])[1]).rest
    setting = Setting(plan.optimizer, plan.precision)
    shardings = candidates_on(program, [plan.mesh], rest, setting)[0].shardings(plan.microbatches)
    limit = plan.mesh.device.limit_bytes(plan.memory_bytes, plan.headroom)
    dump(split_intervals(whole_problem(shardings, limit)), path)
