"""RematPoints of a stage's segments, from their traced pairs; remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.caches import CACHES
from meshwright.capture.program import Program
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.generate.program import sharded_segment
from meshwright.plan import Choice, FrontierPoint, Plan, Stage
from meshwright.remat.curve import RematPoint, fastest_way, kept_curve
from meshwright.remat.traced import traced_for
from meshwright.remat.way import cut_way

_known: dict[object, tuple[RematPoint, ...]] = CACHES.own({})
MOST_KNOWN = 256
"""Curves of traced pairs that are remembered: a search and the pricing of what it found ask for the same."""


def bare(choice: Choice) -> Choice:
    """The choice with everything kept."""
    return replace(choice, recompute=(), keep=(), chunks=1, offload=())


def with_choices(plan: Plan, chosen: Sequence[Choice]) -> Plan:
    """The plan with these Choices, one per segment."""
    choices, segments = shared_choices(chosen)
    return replace(plan, choices=choices, segments=segments)


def shared_choices(chosen: Sequence[Choice]) -> tuple[tuple[Choice, ...], tuple[int, ...]]:
    """(the different Choices, the place of each segment's among them) of one Choice per segment."""
    choices: list[Choice] = []
    places: dict[int, int] = {}
    for choice in chosen:
        if id(choice) not in places:
            if choice not in choices:
                choices.append(choice)
            places[id(choice)] = choices.index(choice)
    return tuple(choices), tuple(places[id(choice)] for choice in chosen)


_last: list[tuple[Program, str]] = CACHES.own([])


def model_of(program: Program) -> str:
    """The program's fingerprint, remembered for the last program."""
    if not _last or _last[0][0] is not program:
        _last[:] = [(program, program.fingerprint())]
    return _last[0][1]


def stage_ways(plan: Plan, program: Program, stage: Stage, few: bool = False) -> list[tuple[RematPoint, ...]]:
    """RematPoints of each of the stage's segments, from keeping all to recomputing all.

    few: segments that keep all have this point alone.
    """
    mesh = stage.mesh
    costs, traced = NodeCosts(mesh.device, plan.compile, mesh), traced_for(mesh.device)
    found = []
    for index in stage.segments:
        choice = bare(plan.choice(index))
        alone = few and choice == plan.choice(index)
        key = (*_as_sharded(plan, program, stage, index, choice), alone)
        if key not in _known:
            joint = traced(sharded_segment(program, plan, index, plan.microbatch))
            _remember(key, (fastest_way(joint, costs),) if alone else kept_curve(joint, costs))
        found.append(_known[key])
    return found


def way_of(plan: Plan, program: Program, stage: Stage, index: int, whole: bool = False) -> RematPoint:
    """The RematPoint of the plan's Choice, which need not be on the frontier of its segment."""
    mesh, choice = stage.mesh, plan.choice(index)
    choice = bare(choice) if whole else choice
    key = _as_sharded(plan, program, stage, index, choice)
    if key not in _known:
        joint = traced_for(mesh.device)(sharded_segment(program, plan, index, plan.microbatch))
        _remember(key, (cut_way(joint, NodeCosts(mesh.device, plan.compile, mesh), choice.recompute, choice.keep),))
    return _known[key][0]


def _as_sharded(plan: Plan, program: Program, stage: Stage, index: int, choice: Choice) -> tuple[object, ...]:
    """Key of a segment's traced pair."""
    shared_values = tuple(plan.common_layouts(program, index).items())
    where = (stage.mesh.axes, stage.mesh.device, plan.compile)
    return model_of(program), plan.microbatch, where, str(choice), shared_values, program.segments[index].scalars


def _remember(key: object, ways: tuple[RematPoint, ...]) -> None:
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    _known[key] = ways


def kept_point(point: FrontierPoint, gathered: int, ways: tuple[RematPoint, ...], kept: RematPoint) -> FrontierPoint:
    """The FrontierPoint of a segment that keeps so much. gathered: bytes of weights besides its transients."""
    return replace(
        point,
        choice=kept.on(point.choice),
        backward_input_s=point.backward_input_s + max(0.0, kept.seconds - ways[0].seconds),
        resident_bytes=kept.resident_bytes,
        forward_transient_bytes=kept.forward_transient_bytes + gathered,
        backward_transient_bytes=kept.backward_transient_bytes + gathered,
    )
