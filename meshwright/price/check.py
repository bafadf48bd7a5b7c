"""Checks of a plan against a Program: an error of a hand-edited file is refused with its field."""

from __future__ import annotations

import re
from math import lcm, prod

from meshwright.capture.coupling.parts import check_in_parts
from meshwright.capture.optimizer import check_optimizer
from meshwright.capture.precision import precisions_of
from meshwright.capture.program import Program, Segment, SegmentGraph
from meshwright.capture.sizes import BatchSize
from meshwright.cluster import Mesh
from meshwright.cutting import check_cut
from meshwright.errors import LayoutError, PlanError
from meshwright.layout import Layout
from meshwright.pins.stages import SCHEDULES
from meshwright.plan import Choice, Plan, Stage
from meshwright.plan.stages import stage_inputs, stage_prologue
from meshwright.price.flow import flow, invariant
from meshwright.price.parameter import Setting

_CONVERTED = re.compile(r"(_as\d+)?(~\d+)?$")
"""What names add to a value's own: in another layout, and what else the op makes."""


def check_plan(plan: Plan, program: Program) -> None:
    """Raises PlanError unless running `plan` on `program` computes what the model computes."""
    plan.check_program(program)
    check_optimizer(plan.optimizer)
    given = f"microbatches is {plan.microbatches} with a batch of {plan.batch}"
    check_cut(given, plan.batch, plan.microbatches, "undo the edit", _sample_ranks(plan, program))
    check_in_parts(program, plan.microbatches)
    known = precisions_of({parameter.type.dtype for parameter in program.parameters})
    if plan.precision not in known:
        raise PlanError(f"precision is {plan.precision!r}", f"{' or '.join(known)} for this model", "undo the edit")
    orders: tuple[str, ...] = ("one-stage",) if len(plan.stages) == 1 else SCHEDULES
    if plan.schedule not in orders:
        given = f"schedule is {plan.schedule!r} with {len(plan.stages)} stage{'s' if len(plan.stages) > 1 else ''}"
        raise PlanError(given, " or ".join(orders), "set it back")
    _check_inputs(plan, program)
    for number in range(len(plan.stages)):
        _check_prologue(plan, program, number)
    _check_parameters(plan, program)
    _check_segments(plan, program)


def _sample_ranks(plan: Plan, program: Program) -> int:
    """Over how many ranks samples are split, in the batch and between layers: each has as many of every micro-batch."""
    found = [1]
    known = {value.name: value for value in program.inputs}
    for stage in plan.stages:
        read = [(known[name], text) for name, text in stage.inputs.items() if name in known]
        for index in range(stage.first, min(stage.end, len(program.segments))):
            read += zip(program.graph(program.segments[index]).inputs, plan.choice(index).inputs, strict=False)
        for value, text in read:
            sharding = Layout.parse(text).sharding
            dims = [dim for dim, size in enumerate(value.type.shape) if isinstance(size, BatchSize) and size.at(1) == 1]
            found += [prod(stage.mesh.sizes[axis] for axis in sharding(dim)) for dim in dims]
    return lcm(*found)


def _check_inputs(plan: Plan, program: Program) -> None:
    expected = {value.name: value.type.at(plan.batch) for value in program.inputs}
    if list(plan.inputs) != list(expected):
        raise PlanError(f"inputs are {', '.join(plan.inputs)}", ", ".join(expected), "undo the edit")
    for name, entry in plan.inputs.items():
        if (entry.shape, entry.dtype) != (expected[name].sizes, expected[name].dtype):
            given = f"inputs.{name} is {entry.dtype} of shape {entry.shape}"
            raise PlanError(given, f"{expected[name]} at batch {plan.batch}", "undo the edit, or plan again")
    for number, stage in enumerate(plan.stages):
        needed = stage_inputs(program, stage.first, stage.end)
        if set(stage.inputs) != set(needed):
            given = f"stages[{number}].inputs are {', '.join(stage.inputs) or 'none'}"
            raise PlanError(given, ", ".join(needed) or "none", "undo the edit")
        for name, layout in stage.inputs.items():
            _check_layout(f"stages[{number}].inputs.{name}", layout, plan.inputs[name].shape, stage.mesh, "SI")


def _check_prologue(plan: Plan, program: Program, number: int) -> None:
    stage = plan.stages[number]
    graph, made = stage_prologue(program, stage.first, stage.end), stage.prologue
    if len(made.outputs) != len(graph.outputs) or made.inputs:
        given = f"stages[{number}].prologue has {len(made.inputs)} inputs and {len(made.outputs)} outputs"
        raise PlanError(given, f"0 and {len(graph.outputs)}", "undo the edit")
    shared_values = {value.name: Layout.parse(stage.inputs[value.name]) for value in graph.shared_values}
    for part, _ in plan.cut:
        flow(graph.at(part.microbatch), made, stage.mesh, shared_values)


def _check_parameters(plan: Plan, program: Program) -> None:
    names = [parameter.name for parameter in program.parameters]
    if set(plan.parameters) != set(names):
        different = sorted(set(plan.parameters) ^ set(names))
        raise PlanError(f"parameters differ in {', '.join(different)}", "exactly the model's", "undo the edit")
    for parameter in program.parameters:
        entry, field = plan.parameters[parameter.name], f"parameters.{parameter.name}"
        stored = Setting(plan.optimizer, plan.precision).storage_dtype(parameter.type.dtype)
        if entry.dtype != stored:
            raise PlanError(f"{field}.dtype is {entry.dtype}", stored, "undo the edit")
        mesh = plan.home(program, parameter.name).mesh
        _check_layout(f"{field}.storage", entry.storage, parameter.type.sizes, mesh, "SI", even=False)
        _check_layout(f"{field}.compute", entry.compute, parameter.type.sizes, mesh, "SIR", even=False)


def _check_segments(plan: Plan, program: Program) -> None:
    if len(plan.segments) != len(program.segments):
        expected = f"{len(program.segments)}, as the model has layers"
        raise PlanError(f"segments has {len(plan.segments)} entries", expected, "undo the edit")
    _check_tied_replicas(plan, program)
    made: dict[str, tuple[str, Stage]] = {}
    for index, segment in enumerate(program.segments):
        choice, field, stage = plan.choice(index), f"choices[{plan.segments[index]}]", plan.stage_of(index)
        _check_choice(choice, field, segment, program.graph(segment))
        _check_handover(choice, field, segment, made, stage)
        _check_weights(plan, program, index, field)
        made.update((name, (text, stage)) for name, text in zip(segment.outputs, choice.outputs, strict=True))
    last, wanted = made[program.loss][0], str(invariant(plan.stages[-1].mesh))
    if last != wanted:
        raise PlanError(f"the loss is handed over as {last}", wanted, "undo the edit")
    _check_strategies(plan, program)


def _check_tied_replicas(plan: Plan, program: Program) -> None:
    """A stage has a tied replica of each weight that it reads and another stage owns, and no other replica."""
    for number, stage in enumerate(plan.stages):
        read = {name for segment in program.segments[stage.first : stage.end] for name in segment.params}
        wanted = sorted(name for name in read if plan.home(program, name) is not stage)
        missing = [name for name in wanted if name not in stage.tied_replicas]
        if missing:
            raise PlanError(
                f"stages[{number}].tied_replicas lacks {', '.join(missing)}, read there and stored by an earlier stage",
                "a tied replica for each such weight, with the layout that the stage computes in",
                "undo the edit, or add it",
            )
        if sorted(stage.tied_replicas) != wanted:
            given = f"stages[{number}].tied_replicas are {', '.join(sorted(stage.tied_replicas))}"
            raise PlanError(given, ", ".join(wanted) or "none", "undo the edit")
        for name, text in stage.tied_replicas.items():
            shape = program.parameter(name).type.sizes
            _check_layout(f"stages[{number}].tied_replicas.{name}", text, shape, stage.mesh, "SIR", even=False)


def _check_choice(choice: Choice, field: str, segment: Segment, graph: SegmentGraph) -> None:
    if choice.graph != segment.graph:
        expected = f"{segment.graph}, for layer {segment.name}"
        raise PlanError(f"{field}.graph is {choice.graph}", expected, "undo the edit")
    if (len(choice.inputs), len(choice.outputs)) != (len(graph.inputs), len(graph.outputs)):
        given = f"{field} has {len(choice.inputs)} inputs and {len(choice.outputs)} outputs"
        raise PlanError(given, f"{len(graph.inputs)} and {len(graph.outputs)}", "undo the edit")
    made = {"backward", *graph.values()}
    named = (*choice.recompute, *choice.keep, *choice.offload)
    unknown = [name for name in named if _CONVERTED.sub("", name) not in made]
    if unknown:
        given = f"{field}.recompute, .keep or .offload names {', '.join(unknown)}"
        raise PlanError(given, "values of the layer, or `op~0` for what else an op makes", "undo the edit")
    _check_offload(choice, field, graph)
    extra = sorted(set(choice.strategies) - {op.name for op in graph.ops})
    if extra:
        raise PlanError(f"{field}.strategies names {', '.join(extra)}", "ops of the layer", "undo the edit")


def _check_offload(choice: Choice, field: str, graph: SegmentGraph) -> None:
    """Offloaded values are values of the segment that are kept."""
    replaced = {buffer for buffer, _ in graph.updates}
    stay = {value.name for value in (*graph.shared_values, *graph.params, *graph.buffers)} - replaced
    wrong = [name for name in choice.offload if name in stay or name in choice.recompute]
    if wrong:
        given = f"{field}.offload names {', '.join(wrong)}"
        expected = "values that the layer makes or is handed, and keeps: no weights, batch or buffers"
        raise PlanError(given, expected, "undo the edit, or plan again")


def _check_handover(
    choice: Choice, field: str, segment: Segment, made: dict[str, tuple[str, Stage]], stage: Stage
) -> None:
    """Inside a stage a value is read in the layout it was made in; between stages in any but partial sums."""
    for name, layout in zip(segment.inputs, choice.inputs, strict=True):
        given, source = made[name]
        if source is stage and given != layout:
            raise PlanError(
                f"{field}.inputs reads {layout} in layer {segment.name}",
                f"{given}, in which the layer before hands it over",
                "make the two the same",
            )
        if source is not stage and "P" in given + layout:
            raise PlanError(
                f"{name} goes from one stage to another as {given}, is read as {layout}",
                "no partial sums between stages",
                "reduce it before, or cut the stages elsewhere",
            )


def _check_weights(plan: Plan, program: Program, index: int, field: str) -> None:
    segment, stage, choice = program.segments[index], plan.stage_of(index), plan.choice(index)
    for value, name in zip(program.graph(segment).params, segment.params, strict=True):
        used, where = choice.parameters.get(value.name), f"parameters.{name}.compute"
        compute: str | None = plan.parameters[name].compute
        if plan.home(program, name) is not stage:
            compute, where = stage.tied_replicas.get(name), f"tied_replicas.{name}"
        if used != compute:
            given = f"{field}.parameters.{value.name} is {used}"
            raise PlanError(given, f"{compute}, as {where} says", "make the two the same")


def _check_strategies(plan: Plan, program: Program) -> None:
    """Every strategy of every choice is one of its op's."""
    seen: set[object] = set()
    for index, segment in enumerate(program.segments):
        shared_values = plan.common_layouts(program, index)
        key = (plan.segments[index], tuple(shared_values.items()))
        if key not in seen:
            seen.add(key)
            for part, _ in plan.cut:
                flow(
                    program.graph(segment).at(part.microbatch),
                    plan.choice(index),
                    plan.stage_of(index).mesh,
                    shared_values,
                )


def _check_layout(field: str, text: str, shape: tuple[int, ...], mesh: Mesh, kinds: str, even: bool = True) -> None:
    """even: samples are cut evenly; a parameter's dim may be cut otherwise by one axis."""
    layout = Layout.parse(text)
    try:
        layout.check(shape, mesh.sizes)
    except LayoutError as error:
        raise PlanError(f"{field}: {error.given}", error.expected, "undo the edit") from error
    wrong = [str(state) for state in layout if state.kind not in kinds]
    fits = layout.is_even(shape, mesh.sizes) if even else layout.is_plain(shape, mesh.sizes)
    if wrong or not fits:
        allowed = ", ".join("S(dim)" if kind == "S" else kind for kind in kinds)
        how = "evenly" if even else "evenly, or each dim by one axis"
        raise PlanError(
            f"{field} is {text} for shape {shape}", f"states {allowed} that divide it {how}", "undo the edit"
        )
