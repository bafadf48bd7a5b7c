"""Figures by which users compare plans: throughput, MFU, precision, and ops without a rule."""

from __future__ import annotations

from typing import Any

from meshwright.capture.program import Program
from meshwright.explain.recommend import has_tokens, rate, tokens
from meshwright.plan import Plan
from meshwright.profile import backward_flops, forward_flops
from meshwright.rules import rule_coverage

HALVES = ("bfloat16", "float16")


def figures(plan: Plan, program: Program) -> dict[str, Any]:
    """The predicted step, as the JSON summary has it."""
    found = plan.predicted
    return {
        "step_seconds": found.step_s,
        "tokens_per_second": tokens(plan) / found.step_s if found.step_s and has_tokens(plan) else None,
        "samples_per_second": plan.batch / found.step_s if found.step_s else None,
        "mfu": mfu(plan, program),
        "peak_bytes": found.peak_bytes,
        "host_bytes": found.host_bytes,
    }


def speed(plan: Plan, program: Program) -> str:
    return f"  {rate(plan)}, MFU {mfu(plan, program):.1%}"


def mfu(plan: Plan, program: Program) -> float:
    """Model FLOPs utilisation: FLOPs of forward and backward, without recomputation, over the devices' dense peak."""
    step_s = plan.predicted.step_s
    return step_flops(program) / (step_s * peak_flops(plan, program)) if step_s else 0.0


def peak_flops(plan: Plan, program: Program) -> float:
    """FLOP/s that all devices reach at most in the dtype that the model computes in."""
    return sum(stage.mesh.world_size * stage.mesh.device.peak_flops(_dtype(program)) for stage, *_ in plan.groups)


def step_flops(program: Program) -> int:
    """FLOPs of one step at the program's batch."""
    per_graph = []
    for graph in program.graphs:
        fixed = graph.at(program.batch)
        values = fixed.values()
        per_graph.append(sum(forward_flops(op, values) + backward_flops(op, values) for op in fixed.ops))
    return sum(per_graph[segment.graph] for segment in program.segments)


def computes_in(plan: Plan, program: Program) -> str:
    """A line on dtypes in half precision; nothing otherwise."""
    compute, loss = _dtype(program), loss_dtype(program)
    if compute not in HALVES:
        return ""
    stored = " and ".join(sorted({entry.dtype for entry in plan.parameters.values()}))
    why = ": the model does not cast its outputs; .float() there makes it float32" if loss in HALVES else ""
    return (
        f"  precision {plan.precision}: computes in {compute}; weights, gradients and optimizer state are stored in "
        f"{stored}; the loss is computed in {loss}{why}"
    )


def loss_dtype(program: Program) -> str:
    """The dtype of the loss."""
    last = program.graphs[program.segments[-1].graph]
    return last.values()[last.outputs[0]].type.dtype


def uncovered(program: Program) -> str:
    """A line that names the ops without a rule; nothing where there are none."""
    targets = rule_coverage(program)["fallback"]
    return f"  no rule was found for {', '.join(targets)}: run alike on every device" if targets else ""


def _dtype(program: Program) -> str:
    found = {parameter.type.dtype for parameter in program.parameters}
    return next((half for half in HALVES if half in found), "float32")
