"""A plan in words: what the mesh does, where parameters live, what a step costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from meshwright.cluster import Axis
from meshwright.explain.describe_pipeline import describe_pipeline
from meshwright.explain.words import (
    NESTED,
    accumulated,
    alike_weights,
    batch_parts,
    hosted_lines,
    role_of,
    run_again,
    tally,
    weight_words,
)
from meshwright.layout import Collective
from meshwright.plan.plan import Plan
from meshwright.plan.units import show_bytes, show_gap, show_seconds

ROLES = {
    "dp": "data parallel, samples are sharded",
    "tp": "tensor parallel, weights are sharded",
    "cp": "context parallel, every sequence is sharded",
    "ep": "expert parallel, experts are sharded",
    "rep": "the same work on every device: sharding costs more, or sizes do not divide evenly",
}
LITTLE = 1e-3
"""A share of the step that is not worth a word."""


def describe(plan: Plan, at_peak: Sequence[Mapping[str, int]] = ()) -> str:
    """at_peak: what a device of each stage holds then, by kind, where it is known; else what the prediction has."""
    if len(plan.stages) > 1:
        return describe_pipeline(plan, at_peak)
    lines = [f"plan for {plan.model or 'a model'}, global batch {plan.batch}, on {plan.cluster}"]
    if plan.mesh.world_size > 1:
        lines += [f"  axis {one.name} of {one.size}: {_role(one)}" for one in plan.mesh.axes]
        lines += [f"  {which}: {weight_words(one, plan.mesh, accumulated(plan))}" for one, which in alike_weights(plan)]
    else:
        lines.append("  one device: nothing is sharded")
    if plan.microbatches > 1:
        lines.append(f"  {batch_parts(plan)}, gradients accumulated")
    found = plan.predicted
    shown = [f"forward {show_seconds(found.forward_s)}", f"backward {show_seconds(found.backward_s)}"]
    alone = plan.mesh.world_size == 1
    moved = "casting weights, adding gradients" if alone else "gathers and reductions"
    shown += [f"{moved} {show_seconds(found.parameters_s)}"] if found.parameters_s else []
    shown += [f"optimizer {show_seconds(found.optimizer_s)}"]
    waits = {"waiting for kernel launches": found.host_s, "waiting for copies from the host": found.copies_s}
    shown += [f"{name} {show_seconds(spent)}" for name, spent in waits.items() if spent > LITTLE * found.step_s]
    less = f", {show_seconds(found.hidden_s)} of it overlapped" if found.hidden_s > LITTLE * found.step_s else ""
    lines.append(
        f"  predicted step {show_seconds(found.step_s)}: {', '.join(shown)}{less}; "
        f"{'' if alone else f'communication {show_seconds(found.communication_s)}; '}{show_gap(found.gap)}"
    )
    lines.append(
        f"  predicted peak {show_bytes(found.peak_bytes)} per device: "
        + ", ".join(
            f"{name} {show_bytes(size)}" for name, size in (at_peak[0] if at_peak else dict(found.parts)).items()
        )
        + (f"; {plan.headroom:.0%} of each device is left free" if plan.headroom else "")
    )
    lines += hosted_lines(plan)
    lines += _recomputed(plan)
    lines += [f"  {line}" for line in collectives_table(found.collectives)]
    return "\n".join(lines)


def _role(axis: Axis) -> str:
    if axis.size == 1:
        return "one device, nothing is sharded over it"
    return ROLES.get(role_of(axis.name), "a name that says nothing of what is sharded over it")


def _recomputed(plan: Plan) -> list[str]:
    """What layers do not keep, how many alike, and the chunks in which they run."""
    lines = []
    for (index, names), count in Counter((i, plan.choices[i].recompute) for i in plan.segments).items():
        values = [name for name in names if "~" not in name]
        where = f"{count} of {len(plan.segments)} layers"
        if names:
            shown = ", ".join(values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "")
            again = f"activation checkpointing in {where}: recomputes {shown}"
            lines.append(f"  {again if values else f'statistics of norms recomputed in {where}'}")
        if plan.choices[index].offload:
            parked = ", ".join(plan.choices[index].offload)
            lines.append(f"  activation offload in {where}: {parked} on the host until backward")
        if plan.choices[index].chunks > 1:
            tail = index == plan.segments[-1]
            runs = "chunked loss: the last layer" if tail else f"chunked backward: {where}"
            lines.append(f"  {runs}, in {plan.choices[index].chunks} chunks of the samples")
    if passes := run_again(plan):
        most = 1 + max(passes.values())
        where = f"{len(passes)} of {len(plan.segments)} layers"
        lines.append(f"  {NESTED}: {where} run forward more than once, up to {most} times")
    return lines


def collectives_table(collectives: Iterable[Collective]) -> list[str]:
    """One line per kind and axis: how many, and how many bytes in all."""
    found = sorted(tally(collectives).items())
    return [f"{count} x {kind} over {axis}, {show_bytes(size)}" for (kind, axis), (count, size, _) in found]
