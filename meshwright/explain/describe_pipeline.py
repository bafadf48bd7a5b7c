"""A plan of several stages in words: which devices run what, how full they are, where they wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.errors import counted
from meshwright.explain.words import (
    SCHEDULES,
    accumulated,
    alike_weights,
    batch_parts,
    hosted_lines,
    is_checkpointed,
    tally,
    weight_words,
)
from meshwright.layout import Layout
from meshwright.plan.plan import Plan
from meshwright.plan.records import ParameterPlan, Stage
from meshwright.plan.units import show_bytes, show_gap, show_seconds, show_spans

LITTLE = 1e-4
"""Of a step: gathers and reductions that take less are in forward and backward, which wait for them."""


def describe_pipeline(plan: Plan, at_peak: Sequence[Mapping[str, int]] = ()) -> str:
    """at_peak: what a device of each stage holds when it holds most, by kind, where that is known."""
    found, groups = plan.predicted, plan.groups
    runs = f", {len(plan.stages) // len(groups)} virtual stages each" if len(plan.stages) > len(groups) else ""
    schedule = SCHEDULES.get(plan.schedule, plan.schedule)
    lines = [
        f"plan for {plan.model or 'a model'}, global batch {plan.batch}, on {plan.cluster}",
        f"  pipeline of {counted(len(groups), 'stage')}{runs}, {batch_parts(plan)}, {schedule}",
    ]
    for number, group in enumerate(groups):
        lines.append(_stage(plan, number, group))
    apart = found.parameters_s > LITTLE * found.step_s
    moved = (
        f", gathers and reductions {show_seconds(found.parameters_s)}" if apart else " (gathers and reductions in them)"
    )
    lines.append(
        f"  predicted step {show_seconds(found.step_s)}, bubble {found.bubble:.1%}; the busiest stage: forward "
        f"{show_seconds(found.forward_s)}, backward {show_seconds(found.backward_s)}{moved}, optimizer "
        f"{show_seconds(found.optimizer_s)}; {show_gap(found.gap)}"
    )
    kinds = max(at_peak, key=lambda held: sum(held.values()), default=dict(found.parts))
    shown = ", ".join(f"{name} {show_bytes(size)}" for name, size in kinds.items())
    lines.append(f"  predicted peak {show_bytes(found.peak_bytes)} on the fullest device: {shown}")
    lines += hosted_lines(plan)
    return "\n".join(lines)


def _stage(plan: Plan, number: int, group: tuple[Stage, ...]) -> str:
    mesh = group[0].mesh
    spans = show_spans(*((stage.first, stage.end) for stage in group))
    axes = ", ".join(f"{axis.name} of {axis.size}" for axis in mesh.axes if axis.size > 1) or "no axis"
    text = f"  stage {number}: {spans} on {mesh.world_size} x {mesh.device.name} ({axes})"
    choices = [plan.choice(i) for stage in group for i in stage.segments]
    again = sum(map(is_checkpointed, choices))
    text += f", activation checkpointing in {again} of {len(choices)}" if again else ""
    tied = [name for stage in group for name in stage.tied_replicas]
    text += f", reads {', '.join(tied)} of an earlier stage" if tied else ""
    if plan.predicted.stages:
        found = plan.predicted.stages[number]
        text += f"; {counted(found.in_flight, 'forward pass')} in flight, peak {show_bytes(found.peak_bytes)}"
    return text


def explain_pipeline(plan: Plan, at_peak: Sequence[Mapping[str, int]] = ()) -> str:
    """Where each stage's time and memory go, and what crosses between stages."""
    step_s = plan.predicted.step_s or 1.0
    lines = [
        describe_pipeline(plan, at_peak),
        "",
        "where the time goes, by stage (compute with its collectives, exposed communication, bubble):",
    ]
    for number, stage in enumerate(plan.predicted.stages):
        shares = [f"{seconds / step_s:6.1%}" for seconds in (stage.busy_s, stage.exposed_s, stage.bubble_s)]
        each_s = sum(stage.forward_s), sum(stage.backward_input_s) + sum(stage.backward_weight_s)
        lines.append(
            f"  stage {number}: {' '.join(shares)}; a micro-batch takes {show_seconds(each_s[0])} forward, "
            f"{show_seconds(each_s[1])} backward, {show_seconds(sum(stage.send_s))} to send"
            + (f"; launching a step's kernels {show_seconds(stage.launch_s)}" if stage.launch_s else "")
        )
    lines += ["", "where the memory goes, on a device of each stage:"]
    for number, stage in enumerate(plan.predicted.stages):
        rest = max(0, stage.peak_bytes - stage.static_bytes - stage.transient_bytes)
        kinds = {
            "parameters, gradients, optimizer": stage.static_bytes,
            "activations and messages in flight": rest,
            "temporary buffers": stage.transient_bytes,
        }
        shown = [f"{name} {show_bytes(size)}" for name, size in (at_peak[number] if at_peak else kinds).items()]
        lines.append(f"  stage {number}: peak {show_bytes(stage.peak_bytes)}: {'; '.join(shown)}")
    lines += ["", "between stages:", *_links(plan), *_relays(plan)]
    traffic = _traffic(plan)
    lines += ["", "what a rank of each stage communicates in a step:", *traffic] if traffic else []
    lines += ["", "weights:", *(f"  {which}: {_stored(plan, entry)}" for entry, which in alike_weights(plan))]
    return "\n".join(lines)


def _links(plan: Plan) -> list[str]:
    return [
        f"  stage {link.source} to {link.target}: {link.bandwidth / 1e9:.4g} GB/s a device, "
        f"{show_seconds(link.latency_s)}"
        for link in plan.links
        if link.source < link.target
    ]


def _relays(plan: Plan) -> list[str]:
    if not plan.routed_via_stages:
        return []
    spans = show_spans(*((segment, segment + 1) for segment in plan.routed_via_stages))
    return [f"  values of {spans} are passed on from stage to stage to those that read them"]


def _traffic(plan: Plan) -> list[str]:
    """By stage: how often each kind over each axis, messages to and from each rank, how many bytes in all, and
    of collectives the seconds."""
    lines = []
    for number, stage in enumerate(plan.predicted.stages):
        found = tally(stage.traffic, plan.groups[number][0].mesh)
        for (kind, axis), (count, size, seconds) in sorted(found.items(), key=lambda one: -one[1].bytes):
            where = _WORDS.get(kind, "over") + " " + axis
            took = "" if seconds is None else f", {show_seconds(seconds)}"
            lines.append(f"  stage {number}: {count} x {kind} {where}, {show_bytes(size)}{took}")
    return lines


_WORDS = {"send": "to", "receive": "from", "broadcast": "to"}


def _stored(plan: Plan, entry: ParameterPlan) -> str:
    """In words where all stages with as many axes call these alike, which is then its mesh's; else the layouts."""
    axes = len(Layout.parse(entry.storage).states)
    meshes = {stage.mesh.names: stage.mesh for stage in plan.stages if len(stage.mesh.axes) == axes}
    if len(meshes) == 1:
        return weight_words(entry, next(iter(meshes.values())), accumulated(plan))
    return f"used {entry.compute}, stored {entry.storage}"
