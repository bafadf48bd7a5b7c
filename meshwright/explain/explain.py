"""A plan in words and numbers: what each axis does, where the time goes, where the memory goes, what binds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

from meshwright.cluster import collective_s
from meshwright.errors import counted
from meshwright.explain.describe import describe
from meshwright.explain.describe_pipeline import explain_pipeline
from meshwright.explain.pace import pace
from meshwright.explain.words import STATES, layout_words
from meshwright.layout import Layout
from meshwright.plan.frontier import Choice
from meshwright.plan.plan import Plan
from meshwright.plan.units import show_bytes, show_seconds, show_spans

TIERS = {
    "table": "meshwright's table",
    "user": "registered by the user",
    "dtensor": "DTensor's, proven",
    "discovered": "found by running the op on pieces, proven",
    "fallback": "none found: replicated on every device",
}


def explain(plan: Plan, at_peak: Sequence[Mapping[str, int]] = (), names: Sequence[str] = ()) -> str:
    """at_peak: what a device of each stage holds when it holds most, by kind, where that is known.
    names: of layers; their numbers in the chain where they are not known."""
    if len(plan.stages) > 1:
        return "\n".join([explain_pipeline(plan, at_peak), "", *_bottlenecks(plan), *_rules(plan)])
    lines = [describe(plan, at_peak)]
    if plan.mesh.world_size > 1:
        lines += ["", "layers, and the layout of the activations that each hands on:", *_boundaries(plan, names)]
    lines += ["", "where the time goes:", *_time(plan)]
    held = _memory(plan, at_peak[0] if at_peak else None)
    lines += ["", "where the memory goes, on each device:", *held, "", *_bottlenecks(plan)]
    lines += _rules(plan)
    return "\n".join(lines)


def _boundaries(plan: Plan, names: Sequence[str]) -> list[str]:
    """Runs of layers that do the same."""
    lines, first = [], 0
    for choice, run in groupby(plan.segments):
        made, count = plan.choices[choice], len(list(run))
        span = _named(names[first : first + count]) or show_spans((first, first + count))
        lines.append(f"  {span}: {', '.join(f'{layout_words(text, plan.mesh)} {text}' for text in made.outputs)}")
        lines += [f"    {text}" for text in _weights(plan, made)]
        first += count
    return lines


def _named(names: Sequence[str]) -> str:
    return f"{names[0]} to {names[-1]} ({len(names)})" if len(names) > 1 else "".join(names)


def _weights(plan: Plan, choice: Choice) -> list[str]:
    """What each axis does to the weights of a layer, and to its ops."""
    lines = []
    layouts = [Layout.parse(text) for text in choice.parameters.values()]
    factors = [text.split(",") for text in choice.strategies.values()]
    for number, axis in enumerate(plan.mesh.axes):
        if axis.size == 1:
            continue
        uses = Counter("sharded" if layout[number].is_shard else STATES[layout[number].kind] for layout in layouts)
        split = sum(one[number] != "-" for one in factors)
        weights = ", ".join(f"{count} {what}" for what, count in uses.most_common()) or "none"
        lines.append(f"{axis.name}: {split} of {len(factors)} ops sharded; weights: {weights}")
    return lines


def _time(plan: Plan) -> list[str]:
    found = plan.predicted
    rows = [("forward", found.forward_s), ("backward", found.backward_s)]
    alone = all(stage.mesh.world_size == 1 for stage in plan.stages)
    moved = "casting weights, adding gradients" if alone else "gathering weights, reducing gradients"
    rows += [(moved, found.parameters_s), ("optimizer", found.optimizer_s)]
    rows += [("less what is overlapped with compute", -found.hidden_s)] if found.hidden_s > 1e-9 * found.step_s else []
    waits = {"waiting for kernel launches": found.host_s, "waiting for copies from the host": found.copies_s}
    rows += [(name, spent) for name, spent in waits.items() if spent > 1e-9 * found.step_s]
    lines = [_share(name, seconds, found.step_s) for name, seconds in rows]
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    counts: Counter[tuple[str, str]] = Counter()
    for item in found.collectives:
        seconds[item.kind, item.axis] += collective_s(item.kind, item.bytes, plan.mesh.axis(item.axis))
        counts[item.kind, item.axis] += 1
    if seconds:
        lines.append("  communication in it" + (", some of it overlapped:" if found.hidden_s else ":"))
    for (kind, axis), spent in sorted(seconds.items(), key=lambda entry: -entry[1]):
        lines.append("  " + _share(f"{counts[kind, axis]} x {kind} over {axis}", spent, found.step_s))
    return lines


def _memory(plan: Plan, at_peak: Mapping[str, int] | None) -> list[str]:
    found, most = plan.predicted, max(1, plan.predicted.peak_bytes)
    rows = at_peak or {
        found.parts[0][0]: found.parts[0][1],
        "activations kept for backward": found.resident_bytes,
        "gradients and temporary buffers": found.transient_bytes,
    }
    return [f"  {name:<40} {show_bytes(size):>10}  {size / most:6.1%}" for name, size in rows.items()]


def _rules(plan: Plan) -> list[str]:
    """Where the rules of the ops came from; the table's are many and counted."""
    lines = []
    for tier, targets in plan.rules.items():
        shown = f"{counted(len(targets), 'kind')} of op" if tier == "table" else ", ".join(targets)
        lines.append(f"  {TIERS[tier]}: {shown}")
    return ["", "where the rules of ops came from:", *lines] if lines else []


def _share(name: str, seconds: float, whole: float) -> str:
    shown = ("-" if seconds < 0 else "") + show_seconds(abs(seconds))
    return f"  {name:<40} {shown:>10}  {seconds / whole if whole else 0.0:6.1%}"


def _bottlenecks(plan: Plan) -> list[str]:
    return [_binding(plan), *filter(None, [pace(plan)])]


def _binding(plan: Plan) -> str:
    """Of the stage whose devices have least left."""
    peaks = [stage.peak_bytes for stage in plan.predicted.stages] or [plan.predicted.peak_bytes] * len(plan.groups)
    devices = [group[0].mesh.device for group in plan.groups]
    rooms = [device.limit_bytes(plan.memory_bytes, plan.headroom) for device in devices]
    left = [room - peak for room, peak in zip(rooms, peaks, strict=True)]
    number = left.index(min(left))
    device, limit, free = devices[number], rooms[number], left[number]
    reserve = show_bytes(device.memory_bytes - device.usable_bytes)
    own = f"the device's {show_bytes(device.memory_bytes)} less a reserve of {reserve}"
    own += f" and {plan.headroom:.0%} left free" if plan.headroom else ""
    source = "the limit that was given" if plan.memory_bytes and limit < device.usable_bytes else own
    shown = f"{show_bytes(free) if free >= 0 else '-' + show_bytes(-free)} of {show_bytes(limit)} ({source})"
    where = f" on stage {number}, the fullest" if len(plan.groups) > 1 else ""
    if free < 0.03 * limit:
        return f"memory is the bottleneck: {shown} are left{where}; a larger limit may be faster"
    if _saves_memory(plan):
        why = "values are recomputed where that takes no longer, or where keeping them would take more than is left"
        return f"memory may be the bottleneck: {shown} are left{where}; {why}"
    return f"memory is not the bottleneck: {shown} are free{where}"


def _saves_memory(plan: Plan) -> bool:
    """Whether time is given for memory though no pin asks for it."""
    asked = any(pin.startswith("recompute") for pin in plan.pins)
    return not asked and (bool(plan.order) or plan.recomputes)
