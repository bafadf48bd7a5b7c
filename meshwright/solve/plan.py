"""From a Program and a cluster to a Plan: every mesh, every number of micro-batches, the best chain, in writing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from math import prod

from meshwright.capture.averaging import comes_apart
from meshwright.capture.program import Program
from meshwright.cluster import FLAT, Cluster, Mesh
from meshwright.cluster.enumerate import meshes, per_host
from meshwright.errors import PlanError
from meshwright.layout import Collective, Layout
from meshwright.plan import Choice, ParameterPlan, Plan, Prediction, Stage
from meshwright.price.parameter import Setting, check_optimizer
from meshwright.solve.account import collectives_of, communication_s
from meshwright.solve.frontier import Frontier, Point, most_alive
from meshwright.solve.inputs import input_layouts, input_plans
from meshwright.solve.joint import joint_search
from meshwright.solve.joint import least_bytes as least_recomputing
from meshwright.solve.mix import Chain
from meshwright.solve.pins import Pins, parse_pins, pinned_mesh
from meshwright.solve.refuse import does_not_fit, least_of
from meshwright.solve.search import Candidate, Found, Progress, search

ROUNDING = 1e-12
"""A gap below this is that of adding the same seconds in another order."""

MOST_ALIVE = 4
"""Values that cross a boundary; where there are more, those that cross several share one way of lying (`skips`)."""


def make_plan(
    program: Program,
    cluster: Cluster,
    *,
    model: str = "",
    memory_bytes: int | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    pins: Iterable[str] = (),
    max_axes: int = 2,
    fit: bool = True,
    recompute: bool = True,
    progress: Progress | None = None,
) -> Plan:
    """The fastest plan over all meshes of up to `max_axes` axes of the cluster's devices that fits on each of them.

    `program` is captured in the dtype it computes in: bfloat16 for `bf16` and `mixed`. fit: refuse where none fits;
    otherwise the fastest of the most micro-batches is the answer then. recompute: where memory binds, activations may
    be made again in backward.
    """
    check_optimizer(optimizer)
    texts = tuple(pins)
    candidates = _candidates(program, _meshes(cluster, texts, max_axes), texts, optimizer, precision)
    usable = cluster.mesh((cluster.device_count,)).device.usable_bytes
    budget = min(memory_bytes or usable, usable)
    found = search(candidates, budget, progress)

    def assemble(chain: Chain, frontier: Frontier) -> Plan:
        plan = _assemble(program, cluster, Found(chain, frontier, chain.seconds))
        return replace(
            plan, model=model, optimizer=optimizer, precision=precision, memory_bytes=memory_bytes, pins=texts
        )

    plan = assemble(found.chain, found.frontier) if found else None
    bound_s = found.bound_s if found else float("inf")
    if recompute and (found is None or found.chain.price):
        others = _candidates(program, _meshes(cluster, texts, max_axes), texts, optimizer, precision, recompute=True)
        plan, joint_s = joint_search(others, program, budget, assemble, plan, progress)
        bound_s = min(bound_s, joint_s)
    if plan is None and not fit:
        found = search([replace(one, microbatches=one.microbatches[-1:]) for one in candidates], 1 << 62)
        plan = assemble(found.chain, found.frontier) if found else None
    if plan is None:
        least = min(least_of(one) for one in candidates)
        if recompute:
            least = min(least, *(least_recomputing(one, program, assemble) for one in candidates))
        raise does_not_fit(cluster, budget, least, lambda larger: _tight(program, larger, optimizer, precision))
    step_s = plan.predicted.step_s
    gap = 1.0 - bound_s / step_s if step_s else 0.0
    plan = plan.with_prediction(gap=gap if gap > ROUNDING else 0.0)
    named = _name_axes(program, plan)
    named.verify()
    return named


def _tight(program: Program, cluster: Cluster, optimizer: str, precision: str) -> Candidate:
    """A mesh of hosts by devices of a host: where weights and activations can be cut most."""
    inner = per_host(cluster)
    shape = (cluster.device_count // inner, inner) if inner < cluster.device_count else (inner,)
    return _candidate(program, cluster.mesh(shape), Pins(), Setting(optimizer, precision))


def _meshes(cluster: Cluster, pins: tuple[str, ...], max_axes: int) -> list[Mesh]:
    shape = pinned_mesh(pins)
    if shape is None:
        return meshes(cluster, max_axes=max_axes)
    if prod(shape) != cluster.device_count or len(shape) > 4:
        raise PlanError(
            f"pin mesh={'x'.join(map(str, shape))} on {cluster.device_count} devices",
            f"at most four axis sizes whose product is {cluster.device_count}",
            "change the pin or the cluster",
        )
    return [cluster.mesh(shape)]


def _candidates(
    program: Program,
    found: list[Mesh],
    pins: tuple[str, ...],
    optimizer: str,
    precision: str,
    recompute: bool = False,
) -> list[Candidate]:
    """One per mesh that the pins allow; the first refusal is the answer where none does."""
    names = [parameter.name for parameter in program.parameters]
    allowed, refused = [], []
    for mesh in found:
        try:
            parsed = parse_pins(pins, mesh, names)
            _check_batch(program, mesh, parsed)
        except PlanError as error:
            refused.append(error)
            continue
        crowded = most_alive(program) > MOST_ALIVE
        for skips in product((True, False), repeat=len(mesh.axes)) if crowded else (None,):
            allowed.append(_candidate(program, mesh, parsed, Setting(optimizer, precision), recompute, skips))
    if not allowed:
        raise refused[0]
    return allowed


def _candidate(
    program: Program,
    mesh: Mesh,
    pins: Pins,
    setting: Setting,
    recompute: bool = False,
    skips: tuple[bool, ...] | None = None,
) -> Candidate:
    made: dict[int, Frontier] = {}

    def frontier(number: int) -> Frontier:
        if number not in made:
            made.clear()  # one at a time: tables are large
            small = program.at_batch(program.batch // number)
            made[number] = Frontier(small, mesh, pins, replace(setting, microbatches=number), recompute, skips)
        return made[number]

    return Candidate("x".join(map(str, mesh.sizes)), _microbatches(program, mesh, pins), frontier)


def _microbatches(program: Program, mesh: Mesh, pins: Pins) -> tuple[int, ...]:
    """Numbers that cut the batch evenly; one where samples are coupled, since cutting changes the mathematics."""
    if pins.microbatches:
        return (pins.microbatches,)
    if program.couples_samples or not comes_apart(program):
        return (1,)
    ways = prod(mesh.sizes[axis] for axis in pins.dp_axes)
    return tuple(number for number in range(1, program.batch + 1) if program.batch % (number * ways) == 0)


def _check_batch(program: Program, mesh: Mesh, pins: Pins) -> None:
    number = pins.microbatches or 1
    at_a_time = f"a global batch of {program.batch}" + (f" in {number} parts" if number > 1 else "")
    if program.batch % number:
        raise PlanError(
            f"pin microbatch={number} with a global batch of {program.batch}",
            "a number that divides it",
            "change the batch or the pin",
        )
    ways = prod(mesh.sizes[axis] for axis in pins.dp_axes)
    if program.batch // number % ways:
        raise PlanError(
            f"pin dp={ways} with {at_a_time}",
            "a batch that divides evenly",
            "change the batch or the pins",
        )


def _assemble(program: Program, cluster: Cluster, found: Found) -> Plan:
    chain, mesh = found.chain, found.frontier.mesh
    small = found.frontier.program
    choices: list[Choice] = []
    for point in chain.points:
        if point.point.choice not in choices:
            choices.append(point.point.choice)
    inputs, prologue = input_layouts(small, mesh, [point.point.choice for point in chain.points])
    plan = Plan(
        fingerprint=program.fingerprint(),
        model="",
        batch=program.batch,
        cluster=cluster.name,
        stages=(Stage(0, len(program.segments), mesh, inputs, prologue),),
        inputs=input_plans(program),
        choices=tuple(choices),
        segments=tuple(choices.index(point.point.choice) for point in chain.points),
        parameters=_parameters(program, chain.points),
        predicted=_predict(chain, found.bound_s),
        microbatches=chain.microbatches,
    )
    collectives = collectives_of(plan, program)
    return plan.with_prediction(collectives=collectives, communication_s=communication_s(collectives, mesh))


def _parameters(program: Program, points: tuple[Point, ...]) -> dict[str, ParameterPlan]:
    found: dict[str, ParameterPlan] = {}
    for segment, point in zip(program.segments, points, strict=True):
        for value, name in zip(program.graphs[segment.graph].params, segment.params, strict=True):
            found.setdefault(name, point.parameters[value.name])
    return {parameter.name: found[parameter.name] for parameter in program.parameters}


def _predict(chain: Chain, bound_s: float) -> Prediction:
    points = [point.point for point in chain.points]
    step_s = chain.seconds
    return Prediction(
        step_s=step_s,
        forward_s=chain.microbatches * sum(point.forward_s for point in points),
        backward_s=chain.microbatches * sum(point.backward_s for point in points),
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
