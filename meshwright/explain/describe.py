"""A plan in words: what the mesh does, where parameters live, what a step costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from meshwright.cluster import Axis
from meshwright.explain.describe_pipeline import describe_pipeline, parts
from meshwright.layout import Collective, Layout
from meshwright.plan.plan import Plan
from meshwright.plan.units import show_bytes, show_gap, show_seconds

ROLES = {
    "dp": "samples are split",
    "tp": "weights are split",
    "cp": "samples are split within: each device a part of every sequence, most weights whole",
    "ep": "experts are split",
    "rep": "every device does the same: splitting costs more, or does not divide evenly",
}
LITTLE = 1e-3
"""A share of the step that is not worth a word."""

STATES = {"R": "whole, by different work", "I": "whole, alike everywhere", "S": "split"}


def describe(plan: Plan) -> str:
    if len(plan.stages) > 1:
        return describe_pipeline(plan)
    lines = [f"plan for {plan.model or 'a model'}, global batch {plan.batch}, on {plan.cluster}"]
    if plan.mesh.world_size > 1:
        lines += [f"  axis {one.name} of {one.size}: {_role(one)}" for one in plan.mesh.axes]
        lines += _parameters(plan)
    else:
        lines.append("  one device: nothing is split")
    if plan.microbatches > 1:
        lines.append(f"  {parts(plan)}, one after another")
    found = plan.predicted
    shown = [f"forward {show_seconds(found.forward_s)}", f"backward {show_seconds(found.backward_s)}"]
    shown += [f"weights and gradients {show_seconds(found.parameters_s)}"] if found.parameters_s else []
    shown += [f"optimizer {show_seconds(found.optimizer_s)}"]
    shown += [f"waiting for the host {show_seconds(found.host_s)}"] if found.host_s > LITTLE * found.step_s else []
    less = f", less {show_seconds(found.hidden_s)} hidden behind them" if found.hidden_s > LITTLE * found.step_s else ""
    lines.append(
        f"  predicted step {show_seconds(found.step_s)}: {', '.join(shown)}{less}; "
        f"of it communication {show_seconds(found.communication_s)}; {show_gap(found.gap)}"
    )
    lines.append(
        f"  predicted peak {show_bytes(found.peak_bytes)} per device: "
        + ", ".join(f"{name} {show_bytes(size)}" for name, size in found.parts)
    )
    lines += _recomputed(plan)
    lines += [f"  {line}" for line in collectives_table(found.collectives)]
    return "\n".join(lines)


def _role(axis: Axis) -> str:
    return ROLES[axis.name.rstrip("0123456789")] if axis.size > 1 else "one device, nothing is split over it"


def _parameters(plan: Plan) -> list[str]:
    counts = Counter((entry.storage, entry.compute, entry.reshard_after_forward) for entry in plan.parameters.values())
    lines = []
    for (storage, compute, again), count in counts.most_common():
        states = zip(plan.mesh.axes, Layout.parse(compute), strict=True)
        use = "; ".join(f"{axis.name}: {STATES[state.kind]}" for axis, state in states if axis.size > 1)
        line = f"  {count} weight{'s' if count > 1 else ''} used {compute} ({use})"
        pieces = [Layout.parse(text).shard_factor(plan.mesh.sizes) for text in (storage, compute)]
        if pieces[0] > pieces[1]:
            line += f", stored {storage} and gathered {'for each use' if again else 'once a step'}"
        lines.append(line)
    return lines


def _recomputed(plan: Plan) -> list[str]:
    """What segments do not keep, how many alike, and the chunks in which they run."""
    lines = []
    for (index, names), count in Counter((i, plan.choices[i].recompute) for i in plan.segments).items():
        values = [name for name in names if "~" not in name]
        if names:
            shown = ", ".join(values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "")
            lines.append(f"  {count} of {len(plan.segments)} segments recompute {shown or 'statistics of norms'}")
        if plan.choices[index].offload:
            parked = ", ".join(plan.choices[index].offload)
            lines.append(f"  {count} of {len(plan.segments)} segments keep {parked} on the host until backward")
        if plan.choices[index].chunks > 1:
            tail = index == plan.segments[-1]
            runs = "the last segment runs" if tail else f"backward of {count} of {len(plan.segments)} segments runs"
            lines.append(f"  {runs} in {plan.choices[index].chunks} chunks of the samples")
    passes = Counter(step for step in plan.order if step.startswith("pass "))
    if passes:
        most = 1 + max(passes.values())
        lines.append(f"  {len(passes)} of {len(plan.segments)} segments run forward more than once, up to {most} times")
    return lines


def collectives_table(collectives: Iterable[Collective]) -> list[str]:
    """One line per kind and axis: how many, and how many bytes in all."""
    counts: Counter[tuple[str, str]] = Counter()
    moved: Counter[tuple[str, str]] = Counter()
    for item in collectives:
        counts[item.kind, item.axis] += 1
        moved[item.kind, item.axis] += item.bytes
    return [f"{n} x {kind} over {axis}, {show_bytes(moved[kind, axis])}" for (kind, axis), n in sorted(counts.items())]
