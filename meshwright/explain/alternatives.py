"""Alternative strategies of one op, or storages of one parameter, priced with all else as planned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

from meshwright.capture.program import Op, Program, SegmentGraph
from meshwright.cluster import Mesh
from meshwright.errors import PlanError, did_you_mean
from meshwright.layout import Layout
from meshwright.pins.pins import Pins
from meshwright.plan import Choice, Plan
from meshwright.planner.space.segment import Space, space
from meshwright.predict.pieces import setting_of
from meshwright.price.parameter import chain_uses
from meshwright.price.segment import price_segment
from meshwright.profile.lookup import lookup_segments
from meshwright.rules import strategies

SHOWN = 8
"""Ops that a refusal lists at most."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """more_s, more_bytes: seconds of a step and held bytes of one segment, less those of the plan."""

    text: str
    more_s: float
    more_bytes: int
    chosen: bool = False


def alternatives_of(plan: Plan, program: Program, name: str) -> list[Alternative]:
    """Alternatives of a parameter by its full name, or of an op as `segment:op`, the planned one first."""
    found = _of_parameter(plan, program, name) if name in plan.parameters else _of_op(plan, program, name)
    return sorted(found, key=lambda one: (not one.chosen, one.more_s))


def _of_parameter(plan: Plan, program: Program, name: str) -> list[Alternative]:
    index = program.uses_of(name)[0]
    segment, mesh = program.segments[index], plan.stage_of(index).mesh
    graph = program.graph(segment)
    local = graph.params[segment.params.index(name)].name
    setting = setting_of(plan)
    here = space(graph, segment.params, plan.microbatch, mesh, Pins(), setting)
    given = {v.name: plan.parameters[full] for v, full in zip(graph.params, segment.params, strict=True)}
    choice = plan.choice(index)
    lookups = lookup_segments(program)
    uses = {local: chain_uses(program.uses_of(name), len(program.segments), plan.microbatches, lookups)}
    base = price_segment(here.graph, choice, given, mesh, setting, uses)
    planned, found = plan.parameters[name], []
    for option in dict.fromkeys((planned, *here.parameters[local])):
        if option != planned and (_idle(option.storage, mesh) or _idle(option.compute, mesh)):
            continue
        ways = [("", choice)] if option.compute == planned.compute else _used_so(here, choice, local, option.compute)
        priced = [(price_segment(here.graph, w, given | {local: option}, mesh, setting, uses), why) for why, w in ways]
        if not priced:
            continue
        point, why = min(priced, key=lambda one: one[0].seconds(plan.microbatches))
        text = f"stored {option.storage}, used {option.compute}{why}"
        pieces = [Layout.parse(layout).shard_factor(mesh.sizes) for layout in (option.storage, option.compute)]
        if pieces[0] > pieces[1]:
            text += ", gathered for each use" if option.reshard_after_forward else ", gathered once a step"
        text += ", gradient reduce-scattered each micro-batch" if option.reduce_scatter_every_microbatch else ""
        more_s = point.seconds(plan.microbatches) - base.seconds(plan.microbatches)
        found.append(Alternative(text, more_s, point.held_bytes - base.held_bytes, option == planned))
    return found


def _used_so(here: Space, choice: Choice, weight: str, compute: str) -> list[tuple[str, Choice]]:
    """(text, choice) with one reader of a weight changed to a strategy that takes it in this layout."""
    found = []
    for index, position in here.uses[weight]:
        op = here.graph.ops[index]
        for made in here.strategies[index]:
            if str(made.operands[position]) == compute and made.text != choice.strategies[op.name]:
                strategies = choice.strategies | {op.name: made.text}
                way = replace(choice, strategies=strategies, parameters=choice.parameters | {weight: compute})
                found.append((f", {op.name} as {made.text}", way))
    return found


def _of_op(plan: Plan, program: Program, name: str) -> list[Alternative]:
    index, op, graph = op_of(plan, program, name)
    mesh = plan.stage_of(index).mesh
    segment = program.segments[index]
    setting, choice = setting_of(plan), plan.choice(index)
    given = {v.name: plan.parameters[full] for v, full in zip(graph.params, segment.params, strict=True)}
    base = price_segment(graph, choice, given, mesh, setting, {})
    found = []
    for made in strategies(op, graph.values(), mesh):
        same = made.text == choice.strategies[op.name]
        if not same and any(
            part != "-" and axis.size == 1 for part, axis in zip(made.text.split(","), mesh.axes, strict=True)
        ):
            continue
        changed = replace(choice, strategies=choice.strategies | {op.name: made.text})
        point = price_segment(graph, changed, given, mesh, setting, {})
        more_s = point.seconds(plan.microbatches) - base.seconds(plan.microbatches)
        found.append(Alternative(str(made), more_s, point.held_bytes - base.held_bytes, same))
    return found


def _idle(layout: str, mesh: Mesh) -> bool:
    """Whether a layout shards over an axis of one device, which changes nothing."""
    return any(state.is_shard and axis.size == 1 for state, axis in zip(Layout.parse(layout), mesh.axes, strict=True))


def op_of(plan: Plan, program: Program, name: str) -> tuple[int, Op, SegmentGraph]:
    """(number of the segment, op, graph at the micro-batch) of `segment:op`."""
    where, _, op_name = name.rpartition(":")
    index = next((i for i, s in enumerate(program.segments) if s.name == where), None)
    if index is None:
        raise _no_such(plan, program, name)
    segment = program.segments[index]
    graph = program.graph(segment).at(plan.microbatch)
    op = next((one for one in graph.ops if one.name == op_name), None)
    if op is None:
        expected = f"one of its ops: {_nearest(op_name, graph)}"
        raise PlanError(f"layer {where} has no op {op_name!r}", expected, "name one of these")
    return index, op, graph


def _no_such(plan: Plan, program: Program, name: str) -> PlanError:
    """The refusal of an unknown name, with the nearest segment and some of its ops."""
    segments = {segment.name: segment for segment in program.segments}
    where, _, op_name = name.rpartition(":")
    near = get_close_matches(where or name, segments, n=1) or [program.segments[-1].name]
    ops = _nearest(op_name, program.graph(segments[near[0]]))
    return PlanError(
        f"{name!r} is no parameter and no `layer:op` of the plan",
        f"a parameter such as {next(iter(plan.parameters), '-')}, or {near[0]}:OP, where OP is one of {ops}",
        did_you_mean(name, [*plan.parameters, *segments]),
    )


def _nearest(name: str, graph: SegmentGraph) -> str:
    """The ops of a graph as text; of many, those with the nearest names."""
    names = [op.name for op in graph.ops]
    if len(names) <= SHOWN:
        return ", ".join(names)
    found = get_close_matches(name, names, n=SHOWN, cutoff=0.0)
    return f"{', '.join(found)} and {len(names) - len(found)} more"
