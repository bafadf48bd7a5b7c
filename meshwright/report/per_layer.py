"""Where a planned step's memory and time go, layer by layer: what `meshwright profile plan.json` and `explain` print.

Bytes are those held when a stage's memory is fullest in the simulated step. What the layers' state, gradients and kept
activations do not explain is temporary: buffers of the running layer, gathered weights, messages on their way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from meshwright.capture.program import ITEM_BYTES, Op, Program
from meshwright.cluster.bind import axis_names
from meshwright.layout import Layout
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes, show_seconds
from meshwright.predict.step import Played, play
from meshwright.price.flow import flow
from meshwright.price.parameter import local_bytes
from meshwright.price.segment import working_bytes
from meshwright.profile.operands import packet
from meshwright.profile.working import HANDED_ON
from meshwright.simulate import Timeline

ENDS = ("backward", "backward_weight")


@dataclass(frozen=True, slots=True)
class LayerUse:
    """Of one layer on one device. forward_s, backward_s: of all micro-batches of a step, recomputation in backward.
    Bytes at the peak of its stage. weights_bytes: with optimizer state, and in the first layer the batch; stored_bytes:
    of these, the weights. buffers_bytes: the most it needs while it runs, at any time."""

    name: str
    stage: int
    forward_s: float
    backward_s: float
    weights_bytes: int
    stored_bytes: int
    gradients_bytes: int
    activations_bytes: int
    buffers_bytes: int


@dataclass(frozen=True, slots=True)
class StagePeak:
    """running: the instruction and layer when memory was fullest; op: of that layer, the one with the largest
    operands and results. temporary_bytes: what is held besides the layers' own."""

    stage: int
    peak_bytes: int
    temporary_bytes: int
    running: str
    op: str


def per_layer(plan: Plan, program: Program) -> tuple[list[LayerUse], list[StagePeak]]:
    played = play(plan, program, spans=True)
    rows: list[LayerUse] = []
    peaks: list[StagePeak] = []
    for number, group in enumerate(plan.groups):
        places = [index for stage in group for index in stage.segments]
        own = _with_ties(program, places, [_use(plan, program, played, number, index) for index in places])
        rows += own
        peak = played.timeline.stages[number].peak_bytes
        held = sum(row.weights_bytes + row.gradients_bytes + row.activations_bytes for row in own)
        peaks.append(StagePeak(number, peak, peak - held, *_running(plan, program, played.timeline, number)))
    return rows, peaks


def at_peak(plan: Plan, program: Program) -> list[dict[str, int]]:
    """What a device of each stage holds when it holds most, by kind."""
    rows, peaks = per_layer(_unnamed(plan), program)
    found = []
    for peak in peaks:
        weights, gradients, activations = _held(rows, peak)
        kinds = {
            "parameters, optimizer, batch": weights,
            "gradients": gradients,
            "activations kept for backward": activations,
            "temporary buffers": peak.temporary_bytes,
        }
        found.append({name: size for name, size in kinds.items() if size > 0})
    return found


def _unnamed(plan: Plan) -> Plan:
    """With axes named as while it was searched for: what was traced then is known."""
    meshes = [stage.mesh.renamed(axis_names(len(stage.mesh.axes))) for stage in plan.stages]
    return replace(plan, stages=tuple(replace(s, mesh=mesh) for s, mesh in zip(plan.stages, meshes, strict=True)))


def _held(rows: list[LayerUse], peak: StagePeak) -> tuple[int, int, int]:
    """(weights, gradients, activations) of all layers of a stage."""
    own = [row for row in rows if row.stage == peak.stage]
    weights, gradients = (sum(row.weights_bytes for row in own), sum(row.gradients_bytes for row in own))
    return weights, gradients, sum(row.activations_bytes for row in own)


def _with_ties(program: Program, places: list[int], rows: list[LayerUse]) -> list[LayerUse]:
    """A tied weight is stored with the first layer that reads it, its gradient made by the last: what that one is short
    of is the first one's."""
    found, params = list(rows), [set(program.segments[index].params) for index in places]
    for place, row in enumerate(rows):
        sharers = [other for other in range(place) if params[other] & params[place]]
        if row.weights_bytes < 0 and sharers:
            first = found[sharers[0]]
            found[sharers[0]] = replace(first, weights_bytes=first.weights_bytes + row.weights_bytes)
            found[place] = replace(row, weights_bytes=0)
    return [replace(row, stored_bytes=min(row.stored_bytes, row.weights_bytes)) for row in found]


def _stored_bytes(plan: Plan, program: Program, index: int) -> int:
    """Of the weights that a layer is the first to read, what its device stores; none of those on the host."""
    mesh, found = plan.stage_of(index).mesh, 0
    for name in dict.fromkeys(program.segments[index].params):
        entry = plan.parameters.get(name)
        if entry is not None and entry.offload != "weight" and program.uses_of(name)[0] == index:
            sizes = program.parameter(name).type.at(1).sizes
            found += local_bytes(sizes, ITEM_BYTES[entry.dtype], Layout.parse(entry.storage), mesh)
    return found


def _use(plan: Plan, program: Program, played: Played, stage: int, index: int) -> LayerUse:
    cost, many = played.costs.segments[index], plan.microbatches
    begun, ended = _by_the_peak(played.timeline, stage, index)
    kept = max(0, begun["forward"] - sum(ended[kind] for kind in ENDS))
    return LayerUse(
        program.segments[index].name,
        stage,
        many * cost.forward_s,
        many * (cost.backward_s + cost.recompute_s),
        cost.static_bytes - cost.gradient_bytes,
        _stored_bytes(plan, program, index),
        cost.gradient_bytes if any(ended[kind] for kind in ENDS) else 0,
        0 if plan.order else kept * cost.resident_bytes,
        max(cost.forward_transient_bytes, cost.backward_transient_bytes),
    )


def _by_the_peak(timeline: Timeline, stage: int, index: int) -> tuple[Counter[str], Counter[str]]:
    """How many of each kind of instruction of a layer had begun, and were over, when memory was fullest."""
    assert timeline.spans is not None
    at_s, begun, ended = timeline.stages[stage].peak_s, Counter[str](), Counter[str]()
    for number, place, began_s, over_s in timeline.spans.ran:
        one = timeline.lists[number][place]
        if number == stage and one.segment == index:
            begun[one.kind] += began_s <= at_s
            ended[one.kind] += over_s <= at_s
    return begun, ended


def _running(plan: Plan, program: Program, timeline: Timeline, stage: int) -> tuple[str, str]:
    one = timeline.at_peak(stage)
    if one is None or one.segment is None:
        return "between layers", ""
    return f"{one.kind} of {program.segments[one.segment].name}", _largest_op(plan, program, one.segment)


def _largest_op(plan: Plan, program: Program, index: int) -> str:
    graph, mesh = program.graph(program.segments[index]).at(plan.microbatch), plan.stage_of(index).mesh
    made = flow(graph, plan.choice(index), mesh, plan.common_layouts(program, index))
    values = graph.values()
    worked = [op for op in graph.ops if packet(op.target) not in HANDED_ON] or graph.ops  # a view holds nothing
    sizes = {op: working_bytes(op, made.strategies[op.name], values, mesh) for op in worked}
    largest = max(reversed(sizes), key=lambda op: sizes[op], default=None)  # of equals the last: the loss
    return op_words(largest) if largest else ""


def op_words(op: Op) -> str:
    """By what the user wrote: the function, and the module that calls it."""
    return f"{packet(op.target)} in {op.module}" if op.module else packet(op.target)


def show_layers(plan: Plan, program: Program) -> list[str]:
    """As a table; neighbours that are alike are one row."""
    rows, peaks = per_layer(plan, program)
    table: list[tuple[str, ...]] = [
        ("layers", "forward", "backward", "weights", "optimizer, copies", "gradients", "activations", "most buffers")
    ]
    names = {segment.name: _title(program, index) for index, segment in enumerate(program.segments)}
    rows = [replace(row, name=names[row.name]) for row in rows]
    for peak in peaks:
        where = f"stage {peak.stage}: " if len(peaks) > 1 else ""
        own = [row for row in rows if row.stage == peak.stage]
        # Neighbours that cost the same; of micro-batches in flight the first may hold more.
        runs = [list(alike) for _, alike in groupby(own, _figures)]
        table += [(where + name, *cells) for name, *cells in map(_row, runs)]
        table += [(where + name, *cells) for name, *cells in [_whole(own, peak)] if len(own) > 1]
    wide = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    many = f" of {plan.microbatches} micro-batches" if plan.microbatches > 1 else ""
    lines = [f"by layer, on one device: seconds of a step{many}, and what is held when memory is fullest:"]
    for name, *cells in table:
        shown = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, wide[1:], strict=True))
        lines.append(f"  {name:<{wide[0]}}  {shown}")
    lines.append("  most buffers: what ops of a layer need at most while they run, at any time of the step")
    lines.append("  copies: weights in the dtype and layout they are computed in; in the first layer also the batch")
    for peak in peaks:
        where = f"stage {peak.stage}: " if len(peaks) > 1 else ""
        op = f", largest op {peak.op}" if peak.op else ""
        weights, gradients, activations = _held(rows, peak)
        parts = {"weights and optimizer": weights, "gradients": gradients, "activations": activations}
        shown = " + ".join(f"{name} {show_bytes(size)}" for name, size in parts.items())
        rest = f"temporary {show_bytes(max(0, peak.temporary_bytes))}"
        kind, of, layer = peak.running.partition(" of ")
        lines.append(f"  {where}peak {show_bytes(peak.peak_bytes)} in {kind}{of}{names.get(layer, layer)}{op}")
        lines.append(f"    = {shown} + {rest} (buffers, gathered weights, gradients and messages on their way)")
    return lines


def _title(program: Program, index: int) -> str:
    """A layer's name; with the modules in it that have others, and the loss: `norm, head, loss`."""
    segment = program.segments[index]
    modules = dict.fromkeys(name.rpartition(".")[0] for name in segment.params)
    others = [one for one in modules if one and not f"{one}.".startswith(f"{segment.name}.")]
    last = index == len(program.segments) - 1 and len(others) + len(modules) > 0
    named = [segment.name, *others[:2], *(["..."] if len(others) > 2 else []), *(["loss"] if last else [])]
    return ", ".join(dict.fromkeys(named))


def _figures(row: LayerUse) -> tuple[Any, ...]:
    sizes = row.weights_bytes, row.stored_bytes, row.gradients_bytes, row.activations_bytes, row.buffers_bytes
    return (row.stage, f"{row.forward_s:.3e}", f"{row.backward_s:.3e}", *sizes)


def _whole(rows: list[LayerUse], peak: StagePeak) -> tuple[str, ...]:
    """All layers together; buffers of two are hardly there at once."""
    seconds = sum(row.forward_s for row in rows), sum(row.backward_s for row in rows)
    weights, *others = _held(rows, peak)
    stored = sum(row.stored_bytes for row in rows)
    return "in all", *map(show_seconds, seconds), *map(show_bytes, (stored, weights - stored, *others)), ""


def _row(run: list[LayerUse]) -> tuple[str, ...]:
    first = run[0]
    name = first.name if len(run) == 1 else f"{first.name} to {run[-1].name} ({len(run)}), each"
    seconds = show_seconds(first.forward_s), show_seconds(first.backward_s)
    state = first.stored_bytes, first.weights_bytes - first.stored_bytes
    sizes = *state, first.gradients_bytes, first.activations_bytes, first.buffers_bytes
    return name, *seconds, *map(show_bytes, sizes)
