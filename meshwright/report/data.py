"""What the page shows, as plain data: read off the plan, its Program and its simulated step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

from meshwright.capture.program import Program, Segment
from meshwright.cluster import Axis, Mesh, collective_s
from meshwright.cost.op.compute import op_seconds
from meshwright.layout import Layout
from meshwright.plan import Plan, Stage
from meshwright.price.flow import flow
from meshwright.report.timeline import timeline_data
from meshwright.report.words import ROLES, headline, role_of, state_words
from meshwright.simulate import Timeline
from meshwright.solve.baselines import Baseline
from meshwright.solve.figures import mfu, tokens


def page_data(
    plan: Plan, program: Program | None = None, timeline: Timeline | None = None, others: Sequence[Baseline] = ()
) -> dict[str, Any]:
    """Without a Program the layers have no ops; without a timeline there is no schedule and no memory over time."""
    found, sizes = plan.predicted, None if program is None else weight_bytes(program)
    return {
        "title": plan.model or "a model",
        "cluster": plan.cluster,
        "devices": plan.world_size,
        "device": plan.stages[0].mesh.device.name,
        "batch": plan.batch,
        "precision": plan.precision,
        "optimizer": plan.optimizer,
        "constraints": list(plan.pins),
        "headline": headline(plan, sizes),
        "step_s": found.step_s,
        "gap": found.gap,
        "samples_per_s": plan.batch / found.step_s if found.step_s else 0.0,
        "tokens_per_s": tokens(plan) / found.step_s if found.step_s else 0.0,
        "mfu": None if program is None else mfu(plan, program),
        "time": _time(plan),
        "memory": [{"name": name, "bytes": size} for name, size in found.parts],
        "peak_bytes": found.peak_bytes,
        "limit_bytes": limit_bytes(plan),
        "alternatives": [
            {"name": one.name, "step_s": one.step_s, "peak_bytes": one.peak_bytes, "fits": one.fits, "why": one.why}
            for one in others
        ],
        "stages": [_stage(plan, number, group) for number, group in enumerate(plan.groups)],
        "layers": [] if program is None else _layers(plan, program),
        "kinds": [] if program is None else _kinds(plan, program),
        "timeline": None if timeline is None or program is None else timeline_data(timeline, program),
        "rules": {tier: list(targets) for tier, targets in plan.rules.items()},
    }


def weight_bytes(program: Program) -> dict[str, int]:
    return {one.name: prod(one.type.at(1).sizes) * one.type.itemsize for one in program.parameters}


def limit_bytes(plan: Plan) -> int:
    """Of the device that has least."""
    usable = min(stage.mesh.device.usable_bytes for stage in plan.stages)
    return usable if plan.memory_bytes is None else min(usable, plan.memory_bytes)


def _time(plan: Plan) -> list[dict[str, Any]]:
    found = plan.predicted
    parts = {
        "forward": found.forward_s,
        "backward": found.backward_s,
        "weights and gradients": found.parameters_s,
        "optimizer": found.optimizer_s,
        "waiting for the host": found.host_s,
    }
    rows: list[dict[str, Any]] = [{"name": name, "seconds": seconds} for name, seconds in parts.items() if seconds > 0]
    if found.hidden_s > 0:
        rows.append({"name": "hidden behind compute", "seconds": -found.hidden_s})
    waits_s = found.step_s - sum(row["seconds"] for row in rows)
    if len(plan.groups) > 1 and waits_s > 0:
        rows.append({"name": "pipeline bubble and waiting", "seconds": waits_s})
    return rows


def _stage(plan: Plan, number: int, group: tuple[Stage, ...]) -> dict[str, Any]:
    mesh = group[0].mesh
    row: dict[str, Any] = {
        "number": number,
        "device": mesh.device.name,
        "devices": mesh.world_size,
        "layers": [[stage.first, stage.end] for stage in group],
        "axes": [_axis(axis) for axis in mesh.axes],
        "traffic": _traffic(plan, number, mesh),
    }
    if plan.predicted.stages:
        own = plan.predicted.stages[number]
        row |= {"peak_bytes": own.peak_bytes, "in_flight": own.in_flight}
        row |= {"busy_s": own.busy_s, "exposed_s": own.exposed_s, "bubble_s": own.bubble_s}
    else:
        row |= {"peak_bytes": plan.predicted.peak_bytes, "in_flight": 1}
    return row


def _axis(axis: Axis) -> dict[str, Any]:
    role = role_of(axis.name)
    hops = [{"level": hop.level, "size": hop.size, "bandwidth": hop.bandwidth} for hop in axis.hops]
    return {"name": axis.name, "size": axis.size, "role": role, "words": ROLES.get(role, role), "hops": hops}


def _traffic(plan: Plan, number: int, mesh: Mesh) -> list[dict[str, Any]]:
    """Per kind and axis: how often, how many bytes, what it would take with nothing hidden."""
    counts: Counter[tuple[str, str]] = Counter()
    moved: Counter[tuple[str, str]] = Counter()
    seconds: Counter[tuple[str, str]] = Counter()
    if plan.predicted.stages:
        items = [(one.kind, one.axis, one.bytes, one.count) for one in plan.predicted.stages[number].traffic]
    else:
        items = [(one.kind, one.axis, one.bytes, 1) for one in plan.predicted.collectives]
    names = {axis.name for axis in (*mesh.axes, *mesh.flat)}
    for kind, axis, size, count in items:
        counts[kind, axis] += count
        moved[kind, axis] += size * count
        if axis in names:
            seconds[kind, axis] += count * collective_s(kind, size, mesh.axis(axis))  # type: ignore[assignment]
    return [
        {"kind": kind, "axis": axis, "count": n, "bytes": moved[kind, axis], "seconds": seconds.get((kind, axis))}
        for (kind, axis), n in sorted(counts.items())
    ]


def _layers(plan: Plan, program: Program) -> list[dict[str, Any]]:
    """The chain: each layer's stage and its kind, of those in `_kinds`."""
    places = {key: place for place, key in enumerate(_distinct(plan, program))}
    return [
        {
            "name": segment.name,
            "stage": plan.stage_at(plan.stage_of(index).mesh.ranks[0]),
            "kind": places[segment.graph, plan.segments[index]],
        }
        for index, segment in enumerate(program.segments)
    ]


def _distinct(plan: Plan, program: Program) -> dict[tuple[int, int], int]:
    """The first layer of each kind: of one graph under one choice."""
    found: dict[tuple[int, int], int] = {}
    for index, segment in enumerate(program.segments):
        found.setdefault((segment.graph, plan.segments[index]), index)
    return found


def _kinds(plan: Plan, program: Program) -> list[dict[str, Any]]:
    return [_kind(plan, program, index) for index in _distinct(plan, program).values()]


def _kind(plan: Plan, program: Program, index: int) -> dict[str, Any]:
    segment, mesh, choice = program.segments[index], plan.stage_of(index).mesh, plan.choice(index)
    graph = program.graph(segment).at(plan.microbatch)
    values, made = graph.values(), flow(graph, choice, mesh, plan.common_layouts(program, index))
    ops = []
    for op in graph.ops:
        strategy = made.strategies[op.name]
        cost = op_seconds(op, strategy, values, mesh.sizes, mesh.device)
        ops.append(
            {
                "name": op.name,
                "target": op.target,
                "module": op.module,
                "shape": list(op.results[0].type.sizes) if op.results else [],
                "layout": _states(strategy.results[0]) if strategy.results else [],
                "forward_s": cost.forward_s,
                "backward_s": cost.backward_s if any(value.grad for value in op.results) else 0.0,
                "collectives": [f"{one.kind} over {one.axis}" for one in strategy.collectives_forward],
                "recomputed": any(value.name in choice.recompute for value in op.results),
            }
        )
    return {
        "ops": ops,
        "inputs": [_states(Layout.parse(text)) for text in choice.inputs],
        "outputs": [_states(Layout.parse(text)) for text in choice.outputs],
        "weights": _weights(plan, program, segment, mesh),
        "chunks": choice.chunks,
        "recomputed": len(choice.recompute),
        "offload": list(choice.offload),
    }


def _weights(plan: Plan, program: Program, segment: Segment, mesh: Mesh) -> list[dict[str, Any]]:
    sizes, rows = weight_bytes(program), []
    for name in segment.params:
        entry = plan.parameters[name]
        rows.append(
            {
                "name": name,
                "bytes": sizes[name],
                "storage": _states(Layout.parse(entry.storage)),
                "compute": _states(Layout.parse(entry.compute)),
                "words": f"computed with {state_words(entry.compute, mesh.names)}; stored "
                f"{state_words(entry.storage, mesh.names)}",
            }
            if len(Layout.parse(entry.storage).states) == len(mesh.axes)
            else {"name": name, "bytes": sizes[name], "storage": [], "compute": [], "words": "held by another stage"}
        )
    return rows


def _states(layout: Layout | Sequence[Any]) -> list[str]:
    return [str(state) for state in layout]
