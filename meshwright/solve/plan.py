"""From a Program and a mesh to a Plan: every way to store tied parameters, the chain for each, the best of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from meshwright.capture.program import Program
from meshwright.cluster import FLAT, Cluster, Mesh
from meshwright.cluster.enumerate import meshes
from meshwright.errors import PlanError
from meshwright.layout import Collective, Layout
from meshwright.plan import Choice, ParameterPlan, Plan, Prediction, Stage
from meshwright.price.parameter import check_optimizer
from meshwright.solve.account import collectives_of, communication_s
from meshwright.solve.chain import Chain, least_bytes, solve_chain, walk
from meshwright.solve.frontier import Fixed, Frontier, Point, tied, tied_options
from meshwright.solve.inputs import input_layouts
from meshwright.solve.pins import Pins, parse_pins


def make_plan(
    program: Program,
    cluster: Cluster,
    *,
    model: str = "",
    memory_bytes: int | None = None,
    optimizer: str = "adamw",
    pins: Iterable[str] = (),
    max_axes: int = 2,
) -> Plan:
    """The fastest plan over all meshes of up to `max_axes` axes of the cluster's devices that fits on each of them."""
    check_optimizer(optimizer)
    texts = tuple(pins)
    frontiers = _frontiers(program, meshes(cluster, max_axes=max_axes), texts, optimizer)
    usable = frontiers[0].mesh.device.usable_bytes
    budget = min(memory_bytes or usable, usable)
    chain, fixed, frontier, bound_s = _search(frontiers, budget)
    plan = _assemble(program, cluster, frontier.mesh, chain, fixed, bound_s)
    plan = replace(plan, model=model, optimizer=optimizer, memory_bytes=memory_bytes, pins=texts)
    named = _name_axes(program, plan)
    named.verify()
    return named


def _frontiers(program: Program, candidates: list[Mesh], pins: tuple[str, ...], optimizer: str) -> list[Frontier]:
    """One per mesh that the pins allow; the first refusal is the answer where none does."""
    names = [parameter.name for parameter in program.parameters]
    found, refused = [], []
    for mesh in candidates:
        try:
            parsed = parse_pins(pins, mesh, names)
            _check_batch(program, mesh, parsed)
            found.append(Frontier(program, mesh, parsed, optimizer))
        except PlanError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found


def _search(frontiers: list[Frontier], budget: int) -> tuple[Chain, Fixed, Frontier, float]:
    """The fastest chain that fits over all meshes and storages of tied parameters, and a bound over all of them.

    Those whose best chain without a budget is no faster than what was found already are not looked at further.
    """
    candidates = [(frontier, fixed) for frontier in frontiers for fixed in _tied_choices(frontier)]
    floors = [walk(frontier, fixed, 0.0)[0] for frontier, fixed in candidates]
    best: tuple[Chain, Fixed, Frontier] | None = None
    bounds = []
    for index in sorted(range(len(candidates)), key=lambda i: floors[i]):
        if best is not None and floors[index] >= best[0].seconds:
            break
        frontier, fixed = candidates[index]
        chain = solve_chain(frontier, fixed, budget, best[0].seconds if best else float("inf"))
        if chain is not None:
            bounds.append(chain.bound_s)
            if best is None or chain.seconds < best[0].seconds:
                best = (chain, fixed, frontier)
    if best is None:
        raise _does_not_fit(frontiers, budget)
    return *best, min(*bounds, best[0].seconds)


def _check_batch(program: Program, mesh: Mesh, pins: Pins) -> None:
    if pins.dp_axis is not None and program.batch % mesh.sizes[pins.dp_axis]:
        raise PlanError(
            f"pin dp={mesh.sizes[pins.dp_axis]} with a global batch of {program.batch}",
            "a batch that divides evenly",
            "change the batch or the pin",
        )


def _tied_choices(frontier: Frontier) -> Iterator[Fixed]:
    names = tied(frontier.program)
    for plans in product(*(tied_options(frontier, name) for name in names)):
        yield dict(zip(names, plans, strict=True))


def _does_not_fit(frontiers: list[Frontier], budget: int) -> PlanError:
    least = min(least_bytes(frontier, fixed) for frontier in frontiers for fixed in _tied_choices(frontier))
    mesh = frontiers[0].mesh
    return PlanError(
        f"no plan fits in {budget:,} bytes on each of {mesh.world_size} devices ({mesh.device.name})",
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
        parameters_s=sum(point.first_s + point.last_s for point in points),
        optimizer_s=sum(point.step_s for point in points),
        static_bytes=sum(point.static_bytes for point in points),
        resident_bytes=sum(point.resident_bytes for point in points),
        transient_bytes=chain.transient_bytes,
        peak_bytes=chain.peak_bytes,
        gap=max(0.0, 1.0 - bound_s / step_s) if step_s else 0.0,
    )


def _name_axes(program: Program, plan: Plan) -> Plan:
    """`dp` where more weights are used whole by different samples, `tp` where more are split, else `rep`."""
    counts = [Counter[str]() for _ in plan.mesh.axes]
    for parameter in program.parameters:
        for count, state in zip(counts, Layout.parse(plan.parameters[parameter.name].compute), strict=True):
            count[state.kind] += 1
    names: list[str] = []
    for count in counts:
        role = "rep" if not count["R"] and not count["S"] else "dp" if count["R"] >= count["S"] else "tp"
        again = sum(name.startswith(role) for name in names)
        names.append(f"{role}{again + 1}" if again else role)
    new = dict(zip(plan.mesh.names, names, strict=True))
    renamed = tuple(
        Collective(item.kind, FLAT.join(new[part] for part in item.axis.split(FLAT)), item.bytes)
        for item in plan.predicted.collectives
    )
    mesh = plan.mesh.renamed(tuple(names))
    stages = tuple(replace(stage, mesh=mesh) for stage in plan.stages)
    return replace(plan, stages=stages).with_prediction(collectives=renamed)
