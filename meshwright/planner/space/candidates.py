"""Candidates of a search: every mesh that the pins allow, with its numbers of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from math import prod

from meshwright.capture.averaging import comes_apart
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, Mesh
from meshwright.cluster.enumerate import per_host
from meshwright.cutting import cut_batch, even_cuts
from meshwright.errors import PlanError
from meshwright.pins.meshes import allowed_meshes, readings_on
from meshwright.pins.parts import AXES, pin_parts
from meshwright.pins.pins import FREE, Pins, with_roles
from meshwright.pins.spelling import check_spelling
from meshwright.planner.effort import FEW, OVERLAP_WEIGHTS
from meshwright.planner.search.keep_all import Candidate
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.space.long_lived import has_many_alive
from meshwright.price.parameter import Setting

REMEMBERED = 10
"""Numbers of micro-batches of which a candidate keeps the problems; tables it keeps of one."""


def candidates_on(
    program: Program,
    found: list[Mesh],
    pins: tuple[str, ...],
    setting: Setting,
    recompute: bool = False,
    few: bool = False,
) -> list[Candidate]:
    """The readings of the pins on every mesh. Raises the first refusal where there is none.

    few: fewer overlap weights.
    """
    allowed, refused = [], []
    for mesh in found:
        try:
            readings = readings_on(mesh, pins, program.batch)
        except PlanError as error:
            refused.append(error)
            continue
        for parsed in _with_roles(program, mesh, readings, only=len(found) == 1):
            for skips in _skips(mesh, parsed) if has_many_alive(program) else (None,):
                allowed.append(_candidate(program, mesh, parsed, setting, recompute, skips, few))
    if not allowed:
        raise refused[0]
    return allowed


def _with_roles(program: Program, mesh: Mesh, readings: list[Pins], only: bool) -> list[Pins]:
    """What is searched on a mesh: samples go over its outermost axes, whose links are the slowest, or over inner ones
    where they cannot. only: there is no other mesh, so that all of these are, and where samples cannot be split so, all
    is; as on few devices where there is one sample."""
    found: list[Pins] = []
    for pins in readings:
        fitting = (made for made in with_roles(pins, mesh) if _microbatches(program, mesh, made))
        found += islice(fitting, None if only else 1)
    alone = program.batch == 1 and mesh.world_size <= FEW
    return found or (readings if only or alone else [])


def _skips(mesh: Mesh, pins: Pins) -> Iterator[tuple[bool, ...]]:
    """For each axis, whether values that cross several boundaries are sharded over samples."""
    return product(*((True,) if axis in pins.dp_axes else (True, False) for axis in range(len(mesh.axes))))


def tight_candidates(program: Program, cluster: Cluster, pins: tuple[str, ...], setting: Setting) -> list[Candidate]:
    """The mesh of hosts by devices of a host, which can shard weights and activations most; where pins name axes, the
    meshes of few axes that they allow. Empty where the pins are impossible on the cluster."""
    try:
        check_spelling(pins, cluster)
        return candidates_on(program, _tight_meshes(cluster, pins), pins, setting)
    except PlanError:
        return []


def _tight_meshes(cluster: Cluster, pins: tuple[str, ...]) -> list[Mesh]:
    if any(pin_parts(text)[0] in (*AXES, "mesh") for text in pins):
        return allowed_meshes(cluster, pins, FREE)
    inner = per_host(cluster)
    shape = (cluster.device_count // inner, inner) if inner < cluster.device_count else (inner,)
    return [cluster.mesh(shape)]


def _candidate(
    program: Program,
    mesh: Mesh,
    pins: Pins,
    setting: Setting,
    recompute: bool = False,
    skips: tuple[bool, ...] | None = None,
    few: bool = False,
) -> Candidate:
    made: dict[int, ShardingModel] = {}

    def shardings(number: int) -> ShardingModel:
        if number not in made:
            for other in made.values():
                other.forget()
            if len(made) >= REMEMBERED:
                del made[next(iter(made))]
            small = program.at_batch(cut_batch(program.batch, number)[0])
            more = setting.cut(program.batch, number)
            made[number] = ShardingModel(small, mesh, pins, more, recompute, skips, overlap_weight=0.0)
        return made[number]

    name = "x".join(map(str, mesh.sizes))
    weights = OVERLAP_WEIGHTS[:: 2 if few else 1] if mesh.any_overlap and not recompute else OVERLAP_WEIGHTS[:1]
    numbers, axes = _microbatches(program, mesh, pins), sum(size > 1 for size in mesh.sizes)
    rising = mesh.device.kind == "cuda"
    return Candidate(name, numbers, shardings, made.clear, weights, len(mesh.axes) > FREE, axes, rising)


def _microbatches(program: Program, mesh: Mesh, pins: Pins) -> tuple[int, ...]:
    """Numbers that cut the batch evenly, or one that is pinned; one where samples are coupled, since cutting changes
    the mathematics."""
    numbers = even_cuts(program.batch)
    if pins.microbatches:
        numbers = [pins.microbatches]
    elif program.couples_samples or not comes_apart(program):
        numbers = [1]
    ways = prod(mesh.sizes[axis] for axis in pins.dp_axes)
    pairs = [(number, cut_batch(program.batch, number)) for number in numbers]
    return tuple(number for number, (each, last) in pairs if each % ways == 0 and last > 0 and last % ways == 0)
