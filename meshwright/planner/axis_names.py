"""Names of mesh axes, by the parallelism that a plan uses them for.

dp   data parallel: whole weights, different samples
cp   context parallel: whole weights, different parts of the same samples
tp   tensor parallel: split weights
ep   expert parallel: all split weights are experts
rep  replicated: the same work on every device
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from meshwright.capture.experts import MIX
from meshwright.capture.program import Program
from meshwright.capture.sizes import BatchSize
from meshwright.cluster import FLAT
from meshwright.layout import Layout
from meshwright.plan import Plan, Stage


def name_axes(program: Program, plan: Plan) -> Plan:
    """The plan with the axes of its stages and collectives renamed."""
    stages, renamed = [], list(plan.predicted.collectives)
    for stage in plan.stages:
        names = _distinct([_role(program, plan, stage, axis) for axis in range(len(stage.mesh.axes))])
        stages.append(replace(stage, mesh=stage.mesh.renamed(names)))
        new = dict(zip(stage.mesh.names, names, strict=True))
        renamed = [
            replace(item, axis=FLAT.join(new.get(part, part) for part in item.axis.split(FLAT))) for item in renamed
        ]
    return replace(plan, stages=tuple(stages)).with_prediction(collectives=tuple(renamed))


def _role(program: Program, plan: Plan, stage: Stage, axis: int) -> str:
    experts = _expert_weights(program)
    used: Counter[str] = Counter()
    split_only_experts = True
    for index in range(stage.first, stage.end):
        segment = program.segments[index]
        for value, name in zip(program.graphs[segment.graph].params, segment.params, strict=True):
            kind = Layout.parse(plan.choice(index).parameters[value.name])[axis].kind
            used[kind] += 1
            split_only_experts &= kind != "S" or name in experts
    if used["S"] and (split_only_experts or used["S"] > used["R"]):
        return "ep" if split_only_experts else "tp"
    if not used["R"]:
        return "tp" if used["S"] else "rep"
    return "dp" if _over_samples(program, plan, stage, axis) else "cp"


def _over_samples(program: Program, plan: Plan, stage: Stage, axis: int) -> bool:
    """Whether boundary values are mostly sharded over samples; on a tie, whether the batch is."""
    samples = others = 0
    for index in range(stage.first, stage.end):
        graph, choice = program.graphs[program.segments[index].graph], plan.choice(index)
        values = graph.values()
        names = (*(value.name for value in graph.inputs), *graph.outputs)
        for name, text in zip(names, (*choice.inputs, *choice.outputs), strict=True):
            dim = Layout.parse(text)[axis].dim
            if dim is not None:
                over = isinstance(values[name].type.shape[dim], BatchSize)
                samples, others = samples + over, others + (not over)
    dims = {value.name: value.type.shape for value in program.inputs}
    read = ((dims[name], Layout.parse(text)[axis].dim) for name, text in stage.inputs.items())
    batch = any(dim is not None and isinstance(shape[dim], BatchSize) for shape, dim in read)
    return samples > others or (samples == others and batch)


def _expert_weights(program: Program) -> set[str]:
    found = set()
    for segment in program.segments:
        graph = program.graphs[segment.graph]
        read = {name for op in graph.ops if op.target == MIX for name in op.operands()}
        pairs = zip(graph.params, segment.params, strict=True)
        found |= {name for value, name in pairs if value.name in read and len(value.type.shape) == 3}
    return found


def _distinct(roles: list[str]) -> tuple[str, ...]:
    names: list[str] = []
    for role in roles:
        before = sum(name.startswith(role) for name in names)
        names.append(f"{role}{before + 1}" if before else role)
    return tuple(names)
