"""From a Program and a mesh to a Plan: every way to store tied parameters, the chain for each, the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import prod

from meshwright.capture.program import Program
from meshwright.cluster import Cluster, Mesh
from meshwright.errors import PlanError
from meshwright.layout import Collective, Layout
from meshwright.plan import Choice, ParameterPlan, Plan, Prediction, Stage
from meshwright.price.parameter import check_optimizer
from meshwright.solve.account import collectives_of, communication_s
from meshwright.solve.chain import Chain, least_bytes, solve_chain
from meshwright.solve.frontier import Fixed, Frontier, Point, tied, tied_options
from meshwright.solve.inputs import input_layouts
from meshwright.solve.pins import parse_pins

AXIS = "x"
"""The axis's name until the solution says what it came to do."""


def make_plan(
    program: Program,
    cluster: Cluster,
    *,
    model: str = "",
    memory_bytes: int | None = None,
    optimizer: str = "adamw",
    pins: Iterable[str] = (),
    method: str = "auto",
) -> Plan:
    """The fastest plan over one mesh axis of all the cluster's devices that fits on each of them."""
    check_optimizer(optimizer)
    mesh = cluster.mesh((cluster.device_count,), (AXIS,))
    budget = min(memory_bytes or mesh.device.usable_bytes, mesh.device.usable_bytes)
    chosen = parse_pins(pins, mesh, (parameter.name for parameter in program.parameters))
    frontier = Frontier(program, mesh, chosen, optimizer, method)
    found = [(chain, fixed) for fixed in _tied_choices(frontier) if (chain := solve_chain(frontier, fixed, budget))]
    if not found:
        raise _does_not_fit(frontier, budget)
    chain, fixed = min(found, key=lambda item: item[0].seconds)
    bound_s = min(item[0].bound_s for item in found)
    plan = _assemble(program, cluster, mesh, chain, fixed, bound_s)
    named = replace(plan, model=model, optimizer=optimizer, memory_bytes=memory_bytes, pins=chosen.texts)
    named = _name_axes(program, cluster, named)
    named.verify()
    return named


def _tied_choices(frontier: Frontier) -> Iterator[Fixed]:
    names = tied(frontier.program)
    for plans in product(*(tied_options(frontier, name) for name in names)):
        yield dict(zip(names, plans, strict=True))


def _does_not_fit(frontier: Frontier, budget: int) -> PlanError:
    least = min((b for fixed in _tied_choices(frontier) if (b := least_bytes(frontier, fixed)) is not None), default=0)
    return PlanError(
        f"no plan fits in {budget:,} bytes on each of {frontier.mesh.world_size} devices ({frontier.mesh.device.name})",
        f"at least {least:,} bytes, {least - budget:,} more",
        "raise the memory limit, use more devices, or make the batch smaller",
    )


def _assemble(program: Program, cluster: Cluster, mesh: Mesh, chain: Chain, fixed: Fixed, bound_s: float) -> Plan:
    choices: list[Choice] = []
    for point in chain.points:
        if point.point.choice not in choices:
            choices.append(point.point.choice)
    inputs, prologue = input_layouts(program, mesh, [point.point.choice for point in chain.points])
    plan = Plan(
        fingerprint=program.fingerprint(),
        model="",
        batch=program.batch,
        cluster=cluster.name,
        stages=(Stage(0, len(program.segments), mesh),),
        inputs=inputs,
        prologue=prologue,
        choices=tuple(choices),
        segments=tuple(choices.index(point.point.choice) for point in chain.points),
        parameters=_parameters(program, chain.points, fixed),
        predicted=_predict(chain, bound_s),
    )
    collectives = collectives_of(plan, program)
    return plan.with_prediction(collectives=collectives, communication_s=communication_s(collectives, mesh))


def _parameters(program: Program, points: tuple[Point, ...], fixed: Fixed) -> dict[str, ParameterPlan]:
    found = dict(fixed)
    for segment, point in zip(program.segments, points, strict=True):
        for value, name in zip(program.graph(segment).params, segment.params, strict=True):
            found.setdefault(name, point.parameters[value.name])
    return {parameter.name: found[parameter.name] for parameter in program.parameters}


def _predict(chain: Chain, bound_s: float) -> Prediction:
    points = [point.point for point in chain.points]
    step_s = chain.seconds
    return Prediction(
        step_s=step_s,
        forward_s=sum(point.forward_s for point in points),
        backward_s=sum(point.backward_s for point in points),
        communication_s=0.0,
        optimizer_s=sum(point.step_s for point in points),
        static_bytes=sum(point.static_bytes for point in points),
        resident_bytes=sum(point.resident_bytes for point in points),
        transient_bytes=chain.transient_bytes,
        peak_bytes=chain.peak_bytes,
        gap=max(0.0, 1.0 - bound_s / step_s) if step_s else 0.0,
    )


def _name_axes(program: Program, cluster: Cluster, plan: Plan) -> Plan:
    """`dp` where more weights (by bytes) are used whole by different samples, `tp` where more are split, else `rep`."""
    whole = split = 0
    for parameter in program.parameters:
        state = Layout.parse(plan.parameters[parameter.name].compute)[0]
        count = prod(parameter.type.sizes)
        whole, split = whole + count * (state.kind == "R"), split + count * state.is_shard
    name = "rep" if not whole and not split else "dp" if whole >= split else "tp"
    mesh = cluster.mesh(plan.mesh.sizes, (name,))
    stages = tuple(replace(stage, mesh=mesh) for stage in plan.stages)
    renamed = tuple(Collective(item.kind, name, item.bytes) for item in plan.predicted.collectives)
    return replace(plan, stages=stages).with_prediction(collectives=renamed)
