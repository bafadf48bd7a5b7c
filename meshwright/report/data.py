"""What the page shows, as plain data: read off the plan, its Program and its simulated step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.capture.program import Program
from meshwright.cluster import Axis, Mesh, load_cluster
from meshwright.errors import MeshwrightError
from meshwright.explain import accuracy
from meshwright.explain.figures import mfu
from meshwright.explain.recipes import Baseline
from meshwright.explain.recommend import bound_words, devices, limit_bytes, notes, tokens
from meshwright.explain.words import ROLES, headline, role_of, tally
from meshwright.plan import Plan, Stage
from meshwright.report.layers import kinds, layers
from meshwright.report.timeline import timeline_data
from meshwright.simulate import Timeline


def page_data(
    plan: Plan, program: Program | None = None, timeline: Timeline | None = None, others: Sequence[Baseline] = ()
) -> dict[str, Any]:
    """Without a Program the layers have no ops; without a timeline there is no schedule and no memory over time."""
    found = plan.predicted
    return {
        "title": plan.model or "a model",
        "cluster": plan.cluster,
        "devices": plan.world_size,
        "device": devices(plan),
        "batch": plan.batch,
        "precision": plan.precision,
        "optimizer": plan.optimizer,
        "constraints": list(plan.pins),
        "headline": headline(plan),
        "notes": notes(plan),
        "step_s": found.step_s,
        "gap": found.gap,
        "gap_words": bound_words(plan),
        "expected_error": accuracy.expected_error(plan),
        "samples_per_s": plan.batch / found.step_s if found.step_s else 0.0,
        "tokens_per_s": tokens(plan) / found.step_s if found.step_s else 0.0,
        "mfu": None if program is None else mfu(plan, program),
        "time": _time(plan),
        "overlapped_s": min(found.hidden_s, found.parameters_s),
        "memory": [{"name": name, "bytes": size} for name, size in found.parts],
        "peak_bytes": found.peak_bytes,
        "limit_bytes": limit_bytes(plan),
        "alternatives": [
            {"name": one.title, "step_s": one.step_s, "peak_bytes": one.peak_bytes, "fits": one.fits}
            | {"why": one.refusal}
            for one in others
        ],
        "stages": [_stage(plan, number, group) for number, group in enumerate(plan.groups)],
        "layers": [] if program is None else layers(plan, program),
        "kinds": [] if program is None else kinds(plan, program),
        "timeline": None if timeline is None or program is None else timeline_data(timeline, program),
        "sources": _sources(plan),
        "rules": {tier: list(targets) for tier, targets in plan.rules.items()},
    }


def _time(plan: Plan) -> list[dict[str, Any]]:
    found = plan.predicted
    parts = {
        "forward": found.forward_s,
        "backward": found.backward_s,
        "weights gathered and cast, gradients reduced; not overlapped": max(0.0, found.parameters_s - found.hidden_s),
        "optimizer": found.optimizer_s,
        "waiting for kernel launches": found.host_s,
        "waiting for copies from the host": found.copies_s,
    }
    least_s = 1e-6 * found.step_s  # what is shown as nothing is left out
    rows: list[dict[str, Any]] = [
        {"name": name, "seconds": seconds} for name, seconds in parts.items() if seconds > least_s
    ]
    if found.hidden_s > found.parameters_s:
        rows.append({"name": "less what else is overlapped", "seconds": found.parameters_s - found.hidden_s})
    waits_s = found.step_s - sum(row["seconds"] for row in rows)
    if len(plan.groups) > 1 and waits_s > 0:
        rows.append({"name": "pipeline bubble and waiting", "seconds": waits_s})
    return rows


def _stage(plan: Plan, number: int, group: tuple[Stage, ...]) -> dict[str, Any]:
    mesh = group[0].mesh
    row: dict[str, Any] = {
        "number": number,
        "devices": mesh.world_size,
        "device_words": f"{mesh.world_size} x {mesh.device.name}",
        "first_rank": mesh.ranks[0],
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
    stages, collectives = plan.predicted.stages, plan.predicted.collectives
    found = sorted(tally(stages[number].traffic if stages else collectives, mesh).items())
    return [
        {"kind": kind, "axis": axis, "count": times, "bytes": size, "seconds": seconds}
        for (kind, axis), (times, size, seconds) in found
    ]


def _sources(plan: Plan) -> list[list[str]]:
    """Where the figures of devices and links come from; a cluster that is not here is named."""
    rows = [[f"step times on {name}", what] for name, what in accuracy.sources(plan)]
    try:
        found = load_cluster(plan.cluster).sources
    except MeshwrightError:
        return [*rows, ["devices and links", f"the cluster {plan.cluster}, as it was when this was planned"]]
    return rows + [[figure, source] for figure, source in found]
