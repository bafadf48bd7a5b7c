"""A plan in words and numbers: what each axis does, where the time goes, where the memory goes, what binds."""

from __future__ import annotations

from collections import Counter, defaultdict

from meshwright.cluster import collective_s
from meshwright.layout import Layout
from meshwright.plan.describe import describe
from meshwright.plan.describe_pipeline import explain_pipeline
from meshwright.plan.plan import Plan
from meshwright.plan.units import show_bytes, show_seconds

ACTS = {"I": "the same on every device", "P": "partial sums", "R": "whole"}


def explain(plan: Plan) -> str:
    if len(plan.stages) > 1:
        return explain_pipeline(plan)
    lines = [describe(plan), "", "what happens between segments:", *_boundaries(plan), "", "where the time goes:"]
    lines += _time(plan)
    lines += ["", "where the memory goes, on each device:", *_memory(plan), "", _binding(plan)]
    return "\n".join(lines)


def _boundaries(plan: Plan) -> list[str]:
    """Runs of segments that do the same."""
    runs: list[list[int]] = []
    for choice in plan.segments:
        if runs and runs[-1][0] == choice:
            runs[-1][1] += 1
        else:
            runs.append([choice, 1])
    lines, first = [], 0
    for choice, count in runs:
        made = plan.choices[choice]
        span = f"segment {first}" if count == 1 else f"segments {first} to {first + count - 1}"
        lines.append(f"  {span}: hand over {', '.join(_words(plan, text) for text in made.outputs)}")
        first += count
    return lines


def _words(plan: Plan, text: str) -> str:
    parts = []
    for axis, state in zip(plan.mesh.axes, Layout.parse(text), strict=True):
        what = f"dim {state.dim} split" if state.is_shard else ACTS[state.kind]
        parts.append(f"{axis.name}: {what}")
    return f"{text} ({'; '.join(parts)})"


def _time(plan: Plan) -> list[str]:
    found = plan.predicted
    rows = [("forward", found.forward_s), ("backward", found.backward_s)]
    rows += [("gathering weights, reducing gradients", found.parameters_s), ("optimizer", found.optimizer_s)]
    rows += [("of it hidden behind backward", -found.hidden_s)] if found.hidden_s > 1e-9 * found.step_s else []
    rows += [("waiting for the host", found.host_s)] if found.host_s > 1e-9 * found.step_s else []
    lines = [_share(name, seconds, found.step_s) for name, seconds in rows]
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    counts: Counter[tuple[str, str]] = Counter()
    for item in found.collectives:
        seconds[item.kind, item.axis] += collective_s(item.kind, item.bytes, plan.mesh.axis(item.axis))
        counts[item.kind, item.axis] += 1
    if seconds:
        lines.append("  of it, communication" + (", some of it beside backward:" if found.hidden_s else ":"))
    for (kind, axis), spent in sorted(seconds.items(), key=lambda entry: -entry[1]):
        lines.append("  " + _share(f"{counts[kind, axis]} x {kind} over {axis}", spent, found.step_s))
    return lines


def _memory(plan: Plan) -> list[str]:
    found = plan.predicted
    rows = [
        ("parameters, gradients, optimizer", found.static_bytes),
        ("activations kept for backward", found.resident_bytes),
    ]
    rows.append(("while the largest segment runs", found.transient_bytes))
    return [f"  {name:<40} {show_bytes(size):>10}  {size / max(1, found.peak_bytes):6.1%}" for name, size in rows]


def _share(name: str, seconds: float, whole: float) -> str:
    return f"  {name:<40} {show_seconds(seconds):>10}  {seconds / whole if whole else 0.0:6.1%}"


def _binding(plan: Plan) -> str:
    limit, source = plan.mesh.device.usable_bytes, "the device's memory less its reserve"
    if plan.memory_bytes is not None and plan.memory_bytes < limit:
        limit, source = plan.memory_bytes, "the limit that was given"
    free = limit - plan.predicted.peak_bytes
    if free < 0.03 * limit:
        return f"memory binds: {show_bytes(free)} of {show_bytes(limit)} ({source}) are left; more may be faster"
    return f"memory does not bind: {show_bytes(free)} of {show_bytes(limit)} ({source}) are free; time decides"
