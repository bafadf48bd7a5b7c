"""The generated forward as Python that reads: one function per distinct layer, collectives by name between ops.

The text runs: `loss(batch, stored, buffers)` on every rank gives the loss, and its `backward` the gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from textwrap import wrap
from typing import Any

from meshwright.capture.program import Op, Program, Ref, RunDevice, SegmentGraph, TorchConstant
from meshwright.capture.reading.random import KEYS
from meshwright.cluster import FLAT
from meshwright.errors import counted
from meshwright.generate.program import At, sharded_prologue, sharded_segments
from meshwright.generate.rolled import comment_loops
from meshwright.generate.shard import CONVERT
from meshwright.layout import Layout, conversion
from meshwright.plan import Plan, Stage
from meshwright.plan.instruction import to_text
from meshwright.price.buckets import Transfers, gathered, legs_of, reduced, replica_sums
from meshwright.price.flow import Flow, flow
from meshwright.report.code_chain import (
    INDENT,
    NOTHING,
    WIDTH,
    backward_words,
    chain,
    forward_words,
    function_names,
    header,
    mesh_name,
    prologue_name,
    way_words,
    weights,
    whole,
)
from meshwright.report.code_kept import counted_words, kept_words, totals
from meshwright.schedule.of_plan import plan_lists


def code(program: Program, plan: Plan, rank: int = 0) -> str:
    """The whole plan: header, and for each stage its prologue, each distinct segment, how they follow each other and
    what a step does, as instructions. rank: whose sizes stand there, where a size is cut unevenly."""
    segments, prologues = _graphs(program, plan, [_place(plan, stage, rank) for stage in plan.stages])
    last = [tuple(size - 1 for size in stage.mesh.sizes) for stage in plan.stages]
    alone = rank if _graphs(program, plan, last) != _graphs(program, plan, [None] * len(last)) else None
    parts = [header(plan, _modules([*prologues, *segments]), alone), weights(program, plan)]
    names = function_names(program, segments)
    for number, (stage, prologue) in enumerate(zip(plan.stages, prologues, strict=True)):
        mesh = mesh_name(plan, number)
        if prologue.ops:
            name = prologue_name(plan, number)
            parts.append(_function(name, prologue, None, "values that several layers read", mesh))
        for index in stage.segments:
            users = [i for i in stage.segments if segments[i] is segments[index]]
            if users[0] == index:
                summary = f"runs as {_names([program.segments[i].name for i in users])}"
                own = program.segments[index].name if len(users) > 1 else None
                run = _flow(program, plan, index)
                kept = kept_words(program, plan, index, segments[index])
                parts.append(_function(names[index], segments[index], run, summary, mesh, own, kept))
        parts.append(chain(program, plan, number, names, segments, prologue))
    parts += whole(program, plan)
    return "\n\n\n".join([*parts, _steps(program, plan)])


def _graphs(program: Program, plan: Plan, places: Sequence[At]) -> tuple[tuple[SegmentGraph, ...], list[SegmentGraph]]:
    """Each segment's and each stage's prologue, of one rank of each stage."""
    pairs = zip(plan.stages, places, strict=True)
    return sharded_segments(program, plan, places), [sharded_prologue(program, plan, *pair) for pair in pairs]


def _place(plan: Plan, stage: Stage, rank: int) -> At:
    """Where a rank is on a stage's mesh; the first one's place where it has none."""
    if len(plan.stages) == 1:
        return stage.mesh.coordinates(rank)
    return stage.mesh.coordinates(stage.mesh.ranks.index(rank)) if rank in stage.mesh.ranks else None


def _modules(graphs: list[SegmentGraph]) -> list[str]:
    """The modules whose functions are called; `convert` has a name of its own."""
    targets = {op.target for graph in graphs for op in graph.ops if ":" in op.target and op.target != CONVERT}
    return sorted({target.split(":")[0] for target in targets})


def _flow(program: Program, plan: Plan, index: int) -> Flow:
    graph = program.graph(program.segments[index]).at(plan.microbatch)
    return flow(graph, plan.choice(index), plan.stage_of(index).mesh, plan.common_layouts(program, index))


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} to {names[-1]}, {len(names)} in all"


def _function(
    name: str,
    graph: SegmentGraph,
    run: Flow | None,
    summary: str,
    mesh: str,
    shared: str | None = None,
    kept: Sequence[str] = (),
) -> str:
    """run: layouts of its values, and what its ops do among ranks. kept: what a run keeps and recomputes.
    shared: the name of the first layer that runs it, where there are several; modules are then named within it."""
    layouts = run.layouts if run is not None else {}
    lines = _signature(name, [value.name for value in graph.arguments()])
    lines += _docstring(summary, kept)
    lines += [
        f"    # {value.name}: {value.type} {layouts[value.name]}"
        for value in graph.arguments()
        if value.name in layouts
    ]
    module = ""
    for op in graph.ops:
        if op.module and op.module != module:
            module = op.module
            within = module if shared is None else module.removeprefix(shared).removeprefix(".")
            lines.append(f"    # {within or 'the layer'}")
        lines += _statement(op, layouts, mesh, _inside(op, run))
    returned = [*graph.outputs, *(value for _, value in graph.updates)]
    return "\n".join([*lines, f"    return {', '.join(returned)}"])


def _docstring(summary: str, kept: Sequence[str]) -> list[str]:
    if not kept:
        return [f'{INDENT}"""{summary}"""']
    lines = [f'{INDENT}"""{summary}', ""]
    for text in kept:
        lines += wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT * 2, break_long_words=False)
    return [*lines, f'{INDENT}"""']


def _signature(name: str, arguments: list[str]) -> list[str]:
    line = f"def {name}({', '.join(arguments)}):"
    if len(line) <= WIDTH:
        return [line]
    return [
        f"def {name}(",
        *wrap(f"{', '.join(arguments)},", WIDTH, initial_indent=INDENT, subsequent_indent=INDENT),
        "):",
    ]


def _inside(op: Op, run: Flow | None) -> str:
    """The collectives that an op runs itself: `; all_reduce over tp, backward all_reduce over tp`."""
    made = run.strategies.get(op.name) if run is not None else None
    if made is None or not (made.collectives_forward or made.collectives_backward):
        return ""
    grad = any(value.grad for value in op.results)
    forward = counted_words(made.collectives_forward)
    backward = counted_words(made.collectives_backward if grad else ())
    return "; " + ", backward ".join([forward or "nothing", *([backward] if backward else [])])


def _statement(op: Op, layouts: dict[str, Layout], mesh_name: str, inside: str = "") -> list[str]:
    left = ", ".join(value.name for value in op.results)
    value = op.results[0]
    if op.target == CONVERT:
        source, layout, target, mesh = op.args
        options = dict(op.kwargs)
        shape, grad = options["shape"], options["grad"]
        steps = conversion(layout, target, shape, value.type.itemsize, mesh, grad=grad).steps
        back = f", backward {backward_words(steps, mesh)}" if grad else ""
        right = f'convert({source}, "{layout}", "{target}", {mesh_name}, shape={shape}, grad={grad})'
        return [f"    {left} = {right}  # {forward_words(steps, mesh)}{back}: {value.type}"]
    left += "," if op.target == KEYS and len(op.results) == 1 else ""  # they come as a tuple
    args = [_literal(arg) for arg in op.args] + [f"{key}={_literal(arg)}" for key, arg in op.kwargs]
    layout = f" {layouts[value.name]}" if value.name in layouts else ""
    return [f"    {left} = {_callee(op.target)}({', '.join(args)})  # {value.type}{layout}{inside}"]


def _callee(target: str) -> str:
    if ":" in target:
        module, name = target.split(":")
        return f"{module.rsplit('.', 1)[-1]}.{name}"
    namespace, name, overload = target.split(".")
    if namespace != "aten":
        return f"torch.ops.{target}"
    return f"aten.{name}" if overload == "default" else f"aten.{name}.{overload}"


def _literal(arg: Any) -> str:
    if isinstance(arg, tuple):
        return f"[{', '.join(map(_literal, arg))}]"
    if isinstance(arg, Ref | TorchConstant | RunDevice):
        return str(arg)
    if isinstance(arg, float) and not isfinite(arg):
        return f'float("{arg}")'
    return repr(arg)


def _steps(program: Program, plan: Plan) -> str:
    listed = comment_loops([_layer(program, plan, index) for index in range(len(program.segments))])
    lines = ["# layers by their numbers, and what `gather` and `reduce` of each move"]
    lines += [f"#   {line}" for line in listed]
    every = plan_lists(plan, program)
    for number, instructions in enumerate(every):
        ranks = ", ".join(map(str, plan.groups[number][0].mesh.ranks))
        lines.append("# one step of this rank" if len(every) == 1 else f"# one step of ranks {ranks}")
        lines += [f"#   {line}" for line in comment_loops(to_text(instructions).splitlines())]
    lines += [f"# {line}" for line in totals(program, plan)]
    return "\n".join(lines) + "\n"


def _layer(program: Program, plan: Plan, index: int) -> str:
    """A layer's number and name; under it the collectives of its weights and of their gradients."""
    lines = [f"{index}: {program.segments[index].name}"]
    for name in dict.fromkeys(program.segments[index].params):
        if (first := program.uses_of(name)[0]) != index:
            lines.append(f"  tied: {name} is also layer {first}'s, with which its whole gradient is reduced")

    def way(side: int, source: int, target: int, name: str) -> str:
        """A weight between two of its layouts (stored, where gradients stop, used); side 1: its gradient back."""
        legs = legs_of(plan.parameters[name])
        return way_words(program, plan, name, legs[source], legs[target])[side]

    for flag, gather, reduce in ((False, "once a step", "once a step"), (True, "each time", "each micro-batch")):
        lines += _transfers(f"gather, {gather}", gathered(plan, program, index, each_use=flag), partial(way, 0, 0, 2))
        lines += _transfers(f"reduce, {reduce}", reduced(plan, program, index, scatter=flag), partial(way, 1, 1, 2))
    lines += _transfers("reduce, at the end of the step", replica_sums(plan, program, index), partial(way, 1, 0, 1))
    return "\n".join(lines)


def _transfers(when: str, found: Transfers, way: Callable[[str], str]) -> list[str]:
    """way: what a weight does that goes alone."""
    alone = Counter(map(way, found.unbucketed))
    alike: dict[tuple[str, str], list[int]] = {}
    for bucket in found.buckets:
        alike.setdefault((bucket.kind, bucket.axis.replace(FLAT, ", ")), []).append(len(bucket.names))
    texts = [
        f"{kind} over {axis} of {counted(sum(sizes), 'weight')} in {counted(len(sizes), 'collective')}"
        for (kind, axis), sizes in alike.items()
    ]
    texts += [
        f"{words} of {counted(count, 'weight')}, one by one" for words, count in alone.items() if words != NOTHING
    ]
    return [f"  {when}: {'; '.join(texts)}"] if texts else []
