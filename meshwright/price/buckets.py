"""Buckets: parameters of a segment that travel in one collective.

A bucket is one collective on the pieces of its parameters laid side by side. A large parameter has a bucket of its own,
and one whose conversion takes several collectives is not bucketed. Gradients stand in the order in which backward makes
them, in a few buckets that leave one after the other (`grad_buckets`). They are reduced to the pieces that are stored;
sums over replicas follow once a step (`scattered_layout`). The runtime sends these buckets, and `predict.traffic`
counts them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from meshwright.capture.program import ITEM_BYTES, Parameter, Program
from meshwright.cluster import FLAT, Mesh
from meshwright.layout import Collective, Conversion, Layout, conversion
from meshwright.layout.steps import Op
from meshwright.plan import ParameterPlan, Plan
from meshwright.plan.order import gathers_of
from meshwright.price.bucketing import BUCKET_BYTES, grad_buckets, moving, parts_of, scattered_layout, shared_op
from meshwright.price.parameter import chain_uses, gathers, local_bytes, reductions
from meshwright.profile.lookup import lookup_segments


@dataclass(frozen=True, slots=True)
class Bucket:
    """One collective `kind` over `axis` of `size` ranks.

    dims: the dim at which each parameter is cut; -1 where none is.
    bytes: as a Collective counts them.
    """

    kind: str
    axis: str
    size: int
    names: tuple[str, ...]
    dims: tuple[int, ...]
    bytes: int

    @property
    def collective(self) -> Collective:
        return Collective(self.kind, self.axis, self.bytes)


@dataclass(frozen=True, slots=True)
class Transfers:
    """Collectives of a segment's parameters at one moment: buckets, and parameters without one."""

    buckets: tuple[Bucket, ...]
    unbucketed: tuple[str, ...]


def gathered(plan: Plan, program: Program, segment: int, *, each_use: bool) -> Transfers:
    """Gathers from storage to compute layout before segment `segment`.

    each_use: gathers of every use, instead of those at the first use.
    """
    mesh, found = plan.stage_of(segment).mesh, []
    for parameter in _params(program, segment):
        entry = plan.parameters[parameter.name]
        uses = program.uses_of(parameter.name)
        if entry.reshard_after_forward == each_use and (
            uses[0] == segment or (each_use and plan.stage_of(uses[0]).mesh is mesh)
        ):
            path = _path(parameter, entry, mesh, parameter.type.itemsize)
            ops = tuple(step.forward_op for step in path.steps)
            found.append((parameter, ops, Layout.parse(entry.storage), parameter.type.itemsize))
    return _together(found, mesh, _on_host(plan, found))


def moves(plan: Plan, program: Program, name: str) -> bool:
    """Whether the stored parameter differs from the computed one, in layout or dtype."""
    parameter, entry = program.parameter(name), plan.parameters[name]
    mesh = plan.home(program, name).mesh
    steps = _path(parameter, entry, mesh, parameter.type.itemsize).steps
    return (
        entry.on_host
        or entry.dtype != parameter.type.dtype
        or _does_something([step.forward_op for step in steps], mesh)
    )


def is_home(plan: Plan, program: Program, name: str) -> bool:
    """Whether the gradient comes in the pieces in which the parameter is stored."""
    parameter, entry = program.parameter(name), plan.parameters[name]
    mesh = plan.home(program, name).mesh
    steps = _path(parameter, entry, mesh, ITEM_BYTES[entry.dtype]).steps
    return not _does_something([step.backward_op for step in steps], mesh)


def _does_something(ops: list[Op], mesh: Mesh) -> bool:
    return any(op.sliced for op in ops) or bool(moving(ops, mesh))


def reduced(plan: Plan, program: Program, segment: int, *, scatter: bool) -> Transfers:
    """Reductions of gradients to the stored pieces, of parameters first used in this segment.

    scatter: those of every micro-batch, instead of those of the step.
    """
    ways = {name: (to, of) for name, (_, to, of) in _legs(plan, program, segment, (scatter,)).items()}
    return _reduced(plan, program, segment, ways)


def replica_sums(plan: Plan, program: Program, segment: int) -> Transfers:
    """All-reduces, once a step, of reduce-scattered gradients over axes whose ranks store the same."""
    legs = _legs(plan, program, segment, (False, True))
    return _reduced(plan, program, segment, {name: (to, of) for name, (to, of, _) in legs.items() if to != of})


Legs = tuple[Layout, Layout, Layout]


def legs_of(entry: ParameterPlan) -> Legs:
    """Layouts of a parameter: storage, its reduce-scattered gradient, compute."""
    storage, compute = Layout.parse(entry.storage), Layout.parse(entry.compute)
    return storage, scattered_layout(storage, compute), compute


def _legs(plan: Plan, program: Program, segment: int, scatter: tuple[bool, ...]) -> dict[str, Legs]:
    return {
        parameter.name: legs_of(entry)
        for parameter in _params(program, segment)
        if parameter.trainable
        and (entry := plan.parameters[parameter.name]).reduce_scatter_every_microbatch in scatter
        and program.uses_of(parameter.name)[0] == segment
    }


def _reduced(plan: Plan, program: Program, segment: int, ways: Mapping[str, tuple[Layout, Layout]]) -> Transfers:
    """ways: to which layout gradients go, and from which."""
    mesh, found, scattered = plan.stage_of(segment).mesh, list[_Moved](), set[str]()
    order = _backward_order(program, segment)
    for name in sorted(ways, key=order.__getitem__):
        parameter, entry, (to, of) = program.parameter(name), plan.parameters[name], ways[name]
        itemsize = ITEM_BYTES[entry.dtype]
        ops = tuple(step.backward_op for step in reversed(_home(plan, program, name, to, of).steps))
        cut = [op.kind for op in moving(ops, mesh)] == ["reduce_scatter"]
        found.append((parameter, ops, to if cut else of, itemsize))
        if str(to) != entry.storage:
            scattered.add(name)
    return _together(found, mesh, _on_host(plan, found), scattered, leaves=True)


def _backward_order(program: Program, segment: int) -> dict[str, int]:
    """Parameters in the order in which backward completes their gradients: those read last come first."""
    instance = program.segments[segment]
    graph = program.graph(instance)
    reads: dict[str, int] = {}
    for place, op in enumerate(graph.ops):
        for name in op.operands():
            reads.setdefault(name, place)
    found: dict[str, int] = {}
    for value, name in zip(graph.params, instance.params, strict=True):
        found[name] = max(-reads.get(value.name, 0), found.get(name, -len(graph.ops)))
    return found


def parameter_collectives(plan: Plan, program: Program) -> Iterator[Collective]:
    """Every gather and reduction of a step."""
    for segment in range(len(program.segments)):
        yield from segment_collectives(plan, program, segment)


def segment_collectives(plan: Plan, program: Program, segment: int) -> Iterator[Collective]:
    """Gathers and reductions of one segment's parameters."""
    for flag in (False, True):
        for transfers, forward in (
            (gathered(plan, program, segment, each_use=flag), True),
            (reduced(plan, program, segment, scatter=flag), False),
        ):
            yield from _collectives(plan, program, segment, transfers, forward)
    left = replica_sums(plan, program, segment)
    yield from (bucket.collective for bucket in left.buckets)
    for name in left.unbucketed:
        yield from _home(plan, program, name, *legs_of(plan.parameters[name])[:2]).backward


def _collectives(
    plan: Plan, program: Program, segment: int, transfers: Transfers, forward: bool
) -> Iterator[Collective]:
    micro = plan.microbatches
    alone, lookups = len(plan.stages) == 1, lookup_segments(program)
    uses = chain_uses((segment,), len(program.segments), micro, lookups) if alone else 1

    def times(name: str) -> int:
        entry = plan.parameters[name]
        if forward and entry.reshard_after_forward and plan.order:
            return gathers_of(plan.order, segment, micro)
        return gathers(entry, uses, micro) if forward else reductions(entry, micro)

    for bucket in transfers.buckets:
        yield from (bucket.collective,) * times(bucket.names[0])
    for name in transfers.unbucketed:
        parameter, entry = program.parameter(name), plan.parameters[name]
        if forward:
            path = _path(parameter, entry, plan.home(program, name).mesh, parameter.type.itemsize)
            yield from path.forward * times(name)
        else:
            yield from _home(plan, program, name, *legs_of(entry)[1:]).backward * times(name)


def _home(plan: Plan, program: Program, name: str, to: Layout, of: Layout) -> Conversion:
    """Whose backward is a gradient's way."""
    parameter, itemsize = program.parameter(name), ITEM_BYTES[plan.parameters[name].dtype]
    return conversion(to, of, parameter.type.sizes, itemsize, plan.home(program, name).mesh, grad=parameter.trainable)


def _params(program: Program, segment: int) -> list[Parameter]:
    return [program.parameter(name) for name in dict.fromkeys(program.segments[segment].params)]


def _path(parameter: Parameter, entry: ParameterPlan, mesh: Mesh, itemsize: int) -> Conversion:
    storage, compute = Layout.parse(entry.storage), Layout.parse(entry.compute)
    return conversion(storage, compute, parameter.type.sizes, itemsize, mesh, grad=parameter.trainable)


_Moved = tuple[Parameter, tuple[Op, ...], Layout, int]


def _on_host(plan: Plan, found: list[_Moved]) -> frozenset[str]:
    """Parameters that are stored in the host's memory."""
    return frozenset(one[0].name for one in found if plan.parameters[one[0].name].on_host)


def _together(
    found: list[_Moved],
    mesh: Mesh,
    on_host: Collection[str],
    scattered: Collection[str] = (),
    leaves: bool = False,
) -> Transfers:
    """Group what moves alike, in order, up to the size of a bucket. on_host, scattered (whose reduction is not over
    then): of which nothing is in one bucket with others. leaves: gradients, which set out in parts while others are
    still to come."""
    alike: dict[tuple[str, str, int, bool, bool], list[Bucket]] = {}
    unbucketed = []
    for parameter, ops, layout, itemsize in found:
        made = _single(parameter, ops, layout, itemsize, mesh)
        if made is None:
            unbucketed.append(parameter.name)
        else:
            name = parameter.name
            alike.setdefault((made.kind, made.axis, itemsize, name in on_host, name in scattered), []).append(made)
    return Transfers(
        tuple(bucket for group in alike.values() for bucket in _packed(group, mesh, leaves)), tuple(unbucketed)
    )


def _packed(singles: list[Bucket], mesh: Mesh, leaves: bool) -> list[Bucket]:
    first, sizes = singles[0], [one.bytes for one in singles]
    parts = grad_buckets(first.kind, sum(sizes), mesh.axis(first.axis)) if leaves else 1
    found: list[Bucket] = []
    before = -1
    for one, part in zip(singles, parts_of(sizes, parts), strict=True):
        if part == before and found[-1].bytes + one.bytes <= BUCKET_BYTES:
            found[-1] = _joined(found[-1], one)
        else:
            found.append(one)
        before = part
    return found


def _joined(first: Bucket, second: Bucket) -> Bucket:
    names, dims = first.names + second.names, first.dims + second.dims
    return Bucket(first.kind, first.axis, first.size, names, dims, first.bytes + second.bytes)


def _single(parameter: Parameter, ops: tuple[Op, ...], layout: Layout, itemsize: int, mesh: Mesh) -> Bucket | None:
    """The bucket of one parameter; None where it takes several collectives or its pieces are uneven."""
    op = shared_op(ops, parameter.type.sizes, layout, mesh)
    if op is None:
        return None
    name, size = FLAT.join(mesh.names[axis] for axis in op.axes), prod(mesh.sizes[axis] for axis in op.axes)
    local = local_bytes(parameter.type.sizes, itemsize, layout, mesh)
    if op.kind == "all_reduce":
        return Bucket("all_reduce", name, size, (parameter.name,), (-1,), local)
    dim = layout[op.axes[0]].dim
    assert dim is not None
    return Bucket(op.kind, name, size, (parameter.name,), (dim,), local * size)
