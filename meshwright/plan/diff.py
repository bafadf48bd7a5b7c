"""Two plans compared: only what differs."""

from __future__ import annotations

from collections import Counter

from meshwright.errors import counted
from meshwright.plan.plan import Plan
from meshwright.plan.records import Stage
from meshwright.plan.units import show_bytes, show_seconds


def diff(one: Plan, other: Plan) -> str:
    """Nothing where the two decide the same."""
    lines = []
    for name in ("fingerprint", "model", "batch", "cluster", "microbatches", "precision", "optimizer", "schedule"):
        if getattr(one, name) != getattr(other, name):
            lines.append(f"{name}: {getattr(one, name)} -> {getattr(other, name)}")
    meshes = [", ".join(_mesh(stage) for stage in plan.stages) for plan in (one, other)]
    if meshes[0] != meshes[1]:
        lines.append(f"mesh: {meshes[0]} -> {meshes[1]}")
    changes: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for name in one.parameters.keys() & other.parameters.keys():
        before, after = _parameter(one, name), _parameter(other, name)
        if before != after:
            changes[before, after] += 1
            examples[before, after] = min(name, examples.get((before, after), name))
    for (before, after), count in changes.most_common():
        lines.append(f"{count} weights ({examples[before, after]}, ...): {before} -> {after}")
    count = sum(
        one.choice(i).strategies != other.choice(i).strategies
        for i in range(min(len(one.segments), len(other.segments)))
    )
    if count:
        lines.append(f"{counted(count, 'segment')} {'shards its' if count == 1 else 'shard their'} ops differently")
    before_s, after_s = one.predicted.step_s, other.predicted.step_s
    before_bytes, after_bytes = one.predicted.peak_bytes, other.predicted.peak_bytes
    if lines or before_s != after_s:
        lines.append(f"step: {show_seconds(before_s)} -> {show_seconds(after_s)} ({after_s / before_s - 1:+.1%})")
        lines.append(f"peak: {show_bytes(before_bytes)} -> {show_bytes(after_bytes)}")
    return "\n".join(lines)


def _mesh(stage: Stage) -> str:
    axes = " x ".join(f"{axis.name}={axis.size}" for axis in stage.mesh.axes)
    return f"{axes} for segments {stage.first} to {stage.end - 1}" if stage.first else axes


def _parameter(plan: Plan, name: str) -> str:
    entry = plan.parameters[name]
    extra = (" regathered" if entry.regather else "") + (" scattered" if entry.scatter else "")
    return f"{entry.dtype} {entry.storage} used {entry.compute}{extra}"
