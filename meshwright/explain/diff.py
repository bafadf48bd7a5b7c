"""Two plans compared: only what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from meshwright.errors import counted
from meshwright.explain.words import layout_words
from meshwright.layout import Layout
from meshwright.plan.frontier import Choice
from meshwright.plan.plan import Plan
from meshwright.plan.records import Stage
from meshwright.plan.units import show_bytes, show_seconds, show_spans

ASKED = ("fingerprint", "model", "batch", "cluster", "microbatches", "precision", "optimizer", "schedule", "compile")
SHOWN = 6
"""Names to list at most."""

DECIDED = {
    "graph": "graph",
    "outputs": "layouts of outputs",
    "inputs": "layouts of inputs",
    "recompute": "recomputed in backward (activation checkpointing)",
    "keep": "kept for backward besides",
    "chunks": "chunks that run one after another",
    "offload": "moved to the host until backward (activation offload)",
}
"""What a segment does, in words; its ops and weights are counted."""

LISTED = {"recompute": "op", "keep": "value", "offload": "value"}
"""Of these a segment has a list of names."""

COUNTED = {
    "strategies": ("shards its ops differently", "shard their ops differently"),
    "parameters": ("uses its weights in other layouts", "use their weights in other layouts"),
}


def diff(one: Plan, other: Plan) -> str:
    """Nothing where the two decide the same."""
    lines = [*_asked(one, other), *_stages(one, other), *_weights(one, other), *_segments(one, other)]
    lines += [*_links(one, other), *_lists(one, other)]
    before_s, after_s = one.predicted.step_s, other.predicted.step_s
    before_bytes, after_bytes = one.predicted.peak_bytes, other.predicted.peak_bytes
    if lines or (before_s, before_bytes) != (after_s, after_bytes):
        share = f" ({after_s / before_s - 1:+.1%})" if before_s else ""
        lines.append(f"step: {show_seconds(before_s)} -> {show_seconds(after_s)}{share}")
        lines.append(f"peak: {show_bytes(before_bytes)} -> {show_bytes(after_bytes)}")
    return "\n".join(lines)


def _asked(one: Plan, other: Plan) -> list[str]:
    rows = [(name, getattr(one, name), getattr(other, name)) for name in ASKED]
    rows.append(("memory limit", _limit(one), _limit(other)))
    if one.memory_bytes != other.memory_bytes and _limit(one) == _limit(other):
        rows[-1] = ("memory limit", f"{one.memory_bytes} B", f"{other.memory_bytes} B")
    rows.append(("constraints", ", ".join(one.pins) or "none", ", ".join(other.pins) or "none"))
    return [f"{name}: {before} -> {after}" for name, before, after in rows if before != after]


def _limit(plan: Plan) -> str:
    if plan.memory_bytes is not None:
        return show_bytes(plan.memory_bytes)
    return f"the device's own less {100 * plan.headroom:.4g} %" if plan.headroom else "the device's own"


def _stages(one: Plan, other: Plan) -> list[str]:
    """Meshes first; of the same number of stages also what each reads, and which devices it has."""
    meshes = [", ".join(_mesh(stage) for stage in plan.stages) for plan in (one, other)]
    lines = [f"mesh: {meshes[0]} -> {meshes[1]}"] if meshes[0] != meshes[1] else []
    if len(one.stages) != len(other.stages):
        return lines
    for number, (before, after) in enumerate(zip(one.stages, other.stages, strict=True)):
        lines += [f"stage {number}: {text}" for text in _stage(before, after)]
    return lines


def _stage(before: Stage, after: Stage) -> list[str]:
    lines = []
    if before.mesh.ranks != after.mesh.ranks:
        lines.append(f"ranks {_names(map(str, before.mesh.ranks))} -> {_names(map(str, after.mesh.ranks))}")
    if before.mesh.device != after.mesh.device:
        names = before.mesh.device.name, after.mesh.device.name
        lines.append(f"device {names[0]} -> {names[1]}" if names[0] != names[1] else "other figures of its device")
    same = before.mesh.names == after.mesh.names and before.mesh.sizes == after.mesh.sizes
    if same and (before.mesh.axes, before.mesh.flat) != (after.mesh.axes, after.mesh.flat):
        lines.append("other links of its axes")
    for what, reads in (("batch tensor", "inputs"), ("weight of another stage", "tied_replicas")):
        layouts = getattr(before, reads), getattr(after, reads)
        for name in dict.fromkeys([*layouts[0], *layouts[1]]):
            texts = [layout.get(name, "not read") for layout in layouts]
            lines += [f"{what} {name}: {texts[0]} -> {texts[1]}"] if texts[0] != texts[1] else []
    return lines + (["common values are made differently"] if before.prologue != after.prologue else [])


def _mesh(stage: Stage) -> str:
    axes = " x ".join(f"{axis.name}={axis.size}" for axis in stage.mesh.axes)
    return f"{axes} for {show_spans((stage.first, stage.end))}" if stage.first else axes


def _weights(one: Plan, other: Plan) -> list[str]:
    changes: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for name in dict.fromkeys([*one.parameters, *other.parameters]):
        before, after = _parameter(one, name), _parameter(other, name)
        if before != after:
            changes[before, after] += 1
            examples[before, after] = min(name, examples.get((before, after), name))
    lines = []
    for (before, after), count in changes.most_common():
        more = ", ..." if count > 1 else ""
        lines.append(f"{counted(count, 'weight')} ({examples[before, after]}{more}): {before} -> {after}")
    return lines


def _parameter(plan: Plan, name: str) -> str:
    entry = plan.parameters.get(name)
    if entry is None:
        return "none"
    extra = ", resharded after forward" if entry.reshard_after_forward else ""
    extra += ", reduced every micro-batch" if entry.reduce_scatter_every_microbatch else ""
    axes = len(Layout.parse(entry.storage).states)
    meshes = {stage.mesh.names: stage.mesh for stage in plan.stages if len(stage.mesh.axes) == axes}
    texts = [entry.storage, entry.compute]
    if len(meshes) == 1:  # stages whose axes have other names: which of them it is on the plan alone does not say
        texts = [f"{layout_words(layout, mesh)} {layout}" for mesh in meshes.values() for layout in texts]
    return f"{entry.dtype}, stored {texts[0]}, used {texts[1]}{extra}"


def _used(plan: Plan, name: str) -> str:
    entry = plan.parameters.get(name)
    return entry.compute if entry else "none"


def _segments(one: Plan, other: Plan) -> list[str]:
    """Of each thing that a segment decides: in how many it differs, and how."""
    both = range(min(len(one.segments), len(other.segments)))
    pairs = [(number, one.choice(number), other.choice(number)) for number in both]
    lines = [f"layers: {len(one.segments)} -> {len(other.segments)}"] * (len(one.segments) != len(other.segments))
    for name, words in COUNTED.items():
        if name == "parameters" and any(_used(one, weight) != _used(other, weight) for weight in one.parameters):
            continue  # said of the weights themselves
        count = sum(getattr(before, name) != getattr(after, name) for _, before, after in pairs)
        lines += [f"{counted(count, 'layer')} {words[count > 1]}"] if count else []
    for name, what in DECIDED.items():
        alone = len(one.stages) == len(other.stages) == 1
        if name == "inputs" and alone and any(before.outputs != after.outputs for _, before, after in pairs):
            continue  # inside a stage they are read as they are handed over
        rows = ((n, _text(before, name), _text(after, name)) for n, before, after in pairs)
        lines += _changes(what, rows, LISTED.get(name))
    return lines


def _text(choice: Choice, name: str) -> tuple[str, ...]:
    found = getattr(choice, name)
    return tuple(found) if isinstance(found, tuple) else (str(found),)


def _changes(
    what: str, rows: Iterable[tuple[int, tuple[str, ...], tuple[str, ...]]], noun: str | None = None
) -> list[str]:
    """noun: what the names are of, where they are to be counted."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for number, before, after in rows:
        if before != after:
            found.setdefault((before, after), []).append(number)
    lines = []
    for (before, after), numbers in found.items():
        where = f"layer {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} layers ({numbers[0]}, ...)"
        lines.append(f"{what} in {where}: {_numbers(before, after, noun) if noun else _listed(before, after)}")
    return lines


def _numbers(before: tuple[str, ...], after: tuple[str, ...], noun: str) -> str:
    """`nothing -> 2 ops (gelu, linear)`; of long lists what is new and what is gone."""
    if max(len(before), len(after)) <= SHOWN:
        both = [f"{counted(len(one), noun)} ({', '.join(one)})" if one else "nothing" for one in (before, after)]
        return " -> ".join(both)
    gone, new = [name for name in before if name not in after], [name for name in after if name not in before]
    also = [f"{word} {_names(names)}" for word, names in (("now also", new), ("no longer", gone)) if names]
    return f"{counted(len(before), noun)} -> {counted(len(after), noun)} ({'; '.join(also)})"


def _listed(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    """Long lists without what both have, so that what differs is seen."""
    if max(len(before), len(after)) <= SHOWN:
        return f"{_names(before)} -> {_names(after)}"
    gone, new = [name for name in before if name not in after], [name for name in after if name not in before]
    return f"{_names(gone)} -> {_names(new)}, of {len(before)} -> {len(after)}"


def _names(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more or "none"


def _links(one: Plan, other: Plan) -> list[str]:
    """Of as many stages: between other numbers of them they differ anyway."""
    if len(one.groups) != len(other.groups):
        return []
    links = [{(link.source, link.target): link for link in plan.links} for plan in (one, other)]
    ends = [end for end in dict.fromkeys([*links[0], *links[1]]) if links[0].get(end) != links[1].get(end)]
    if not ends:
        return []
    return [f"links: other rates or none from stage {_names(f'{source} to {target}' for source, target in ends)}"]


def _lists(one: Plan, other: Plan) -> list[str]:
    """The order of a step, which values are routed via stages, and the batch tensors."""
    lines = []
    if one.routed_via_stages != other.routed_via_stages:
        routed = [tuple(map(str, plan.routed_via_stages)) for plan in (one, other)]
        lines.append(f"values passed on from stage to stage, by layer: {_listed(*routed)}")
    if one.order != other.order:
        same = " of others" if _steps(one) == _steps(other) else ""
        lines.append(f"order: {_steps(one)} -> {_steps(other)}{same}")
    if one.tasks != other.tasks and one.schedule == other.schedule:
        lines.append("tasks: another order of the searched schedule")
    if one.answers != other.answers:
        lines.append(f"answers that capture was allowed: {_listed(one.answers, other.answers)}")
    if one.form != other.form:
        lines.append("the batch's form or its plain values")
    if one.inputs != other.inputs:
        names = [name for name in {**one.inputs, **other.inputs} if one.inputs.get(name) != other.inputs.get(name)]
        lines.append(f"batch tensors of another shape or dtype: {_names(names)}")
    return lines


def _steps(plan: Plan) -> str:
    """How many, of which how many run a segment forward once more."""
    if not plan.order:
        return "every layer once"
    again = sum(step.startswith("pass ") for step in plan.order)
    return f"{counted(len(plan.order), 'step')}, {again} of them passes"
