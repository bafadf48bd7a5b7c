"""The space of one segment graph on a mesh: strategies of its ops, storage of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np

from meshwright.caches import CACHES
from meshwright.capture.program import Op, Ref, SegmentGraph, TensorType, Value
from meshwright.capture.sizes import BatchSize
from meshwright.cluster import Mesh
from meshwright.cost.op.compute import op_seconds
from meshwright.cost.op.fused import fused_shares
from meshwright.errors import PlanError
from meshwright.layout import I, Layout, S, State
from meshwright.layout.table import conversion_matrix
from meshwright.pins.pins import Pins
from meshwright.plan import ParameterPlan
from meshwright.planner.space.image_boundaries import ALL, IMAGE_DIMS, boundary_subset
from meshwright.planner.space.saved import Matrix, SavedTensorCost, saved_tensor_costs
from meshwright.planner.space.storage import parameter_options
from meshwright.planner.space.strategies import allowed
from meshwright.price.flow import canonical
from meshwright.price.parameter import Setting, parameter_price
from meshwright.price.segment import (
    collectives_s,
    held_anyway,
    least_working_bytes,
    storage_bases,
    working_bytes,
)
from meshwright.rules import Strategy

T = TypeVar("T")
R = TypeVar("R")

LayoutSet = tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """The options of a segment graph.

    graph: at a fixed batch.
    strategies: of each op; those of alike ops are one object, whose lowerings have the names of the first.
    uses: where each value is read, as (op index, operand position).
    last: the values of the last micro-batch where that is smaller.
    op_costs: of each op, seconds of each strategy.
    op_weight_s: of these, those of the weights' gradients.
    op_host_s: of each op, a lower bound on the seconds of its kernel launches.
    """

    graph: SegmentGraph
    mesh: Mesh
    pins: Pins
    setting: Setting
    values: dict[str, Value]
    strategies: tuple[tuple[Strategy, ...], ...]
    parameters: dict[str, tuple[ParameterPlan, ...]]
    uses: dict[str, tuple[tuple[int, int], ...]]
    batch_dims: dict[str, frozenset[int]]
    bases: dict[str, str]
    outside: frozenset[str] = frozenset()
    last: dict[str, Value] = field(default_factory=dict)
    op_costs: list[Matrix] = field(default_factory=list)
    op_weight_s: list[Matrix] = field(default_factory=list)
    op_host_s: list[float] = field(default_factory=list)
    op_kept: list[tuple[SavedTensorCost, ...]] = field(default_factory=list)
    matrices: dict[tuple[str, LayoutSet, LayoutSet], Matrix] = field(default_factory=dict)

    def running_bytes(self, index: int) -> Matrix:
        """Transient bytes of each strategy of an op, backward included, as `price_segment` counts them."""
        op = self.graph.ops[index]
        found = [2.0 * working_bytes(op, made, self.values, self.mesh) for made in self.strategies[index]]
        return np.array(found)

    def least_transient(self) -> int:
        """Lower bound on the segment's transient bytes."""
        values, mesh = self.values, self.mesh
        return max((least_working_bytes(op, found, values, mesh) for op, found in self.each()), default=0)

    def each(self) -> Iterator[tuple[Op, tuple[Strategy, ...]]]:
        return zip(self.graph.ops, self.strategies, strict=True)

    def least_weight(self, value: Value) -> tuple[int, float]:
        """Lower bounds for a parameter: bytes with gradient and states; seconds of its update's kernel launches."""
        # A gradient that is added up takes the same in two micro-batches as in more.
        setting = replace(self.setting, microbatches=min(2, self.setting.microbatches), last=0)
        prices = [parameter_price(value, plan, self.mesh, setting) for plan in self.parameters[value.name]]
        return min(price.static_bytes for price in prices), min(price.step_host_s for price in prices)


_known: dict[object, tuple[SegmentGraph, Space]] = CACHES.own({})
"""Spaces without parameters, those asked for last at the end; each holds its graph, so that no other takes its id. They
are the same wherever parameters are stored and however boundaries are crossed: a search, its pipelines and the recipes
next to it share them."""

MOST_KNOWN = 96


def space(
    graph: SegmentGraph,
    names: tuple[str, ...],
    batch: int,
    mesh: Mesh,
    pins: Pins,
    setting: Setting,
) -> Space:
    """`names`: the parameters' full names, for pins; a graph shared by several segments takes the first's."""
    key = (id(graph), batch, setting.last, setting.microbatches, setting.compile, mesh, pins.roles)
    found = _known.pop(key, None) or (graph, _ops_space(graph, batch, mesh, pins.roles, setting))
    if len(_known) >= MOST_KNOWN:
        del _known[next(iter(_known))]
    _known[key] = found
    made = replace(found[1], pins=pins, setting=setting, parameters={})
    for value, full_name in zip(made.graph.params, names, strict=True):
        wishes = (layout for place in made.uses[value.name] for layout in operand_layouts(made, place))
        made.parameters[value.name] = parameter_options(value, full_name, wishes, mesh, pins, setting)
    return made


def _ops_space(graph: SegmentGraph, batch: int, mesh: Mesh, pins: Pins, setting: Setting) -> Space:
    """Without parameters."""
    fixed = graph.at(batch)
    values = fixed.values()
    batch_dims = {name: _batch_dims(value.type) for name, value in graph.values().items()}
    weights = frozenset(value.name for value in fixed.params if len(value.type.sizes) > 1)
    kinds = _kinds(graph, weights)

    def strategies(ops: Sequence[Op], values: dict[str, Value]) -> list[tuple[Strategy, ...]]:
        return _of_each(kinds, ops, lambda op: allowed(op, values, mesh, pins, batch_dims, weights))

    found = strategies(fixed.ops, values)
    last: dict[str, Value] = {}
    if setting.last:
        smaller = graph.at(setting.last)
        last = smaller.values()
        alike = [{made.text for made in each} for each in strategies(smaller.ops, last)]
        found = [tuple(m for m in each if m.text in own) for each, own in zip(found, alike, strict=True)]
    uses: dict[str, list[tuple[int, int]]] = {name: [] for name in values}
    for index, op in enumerate(fixed.ops):
        for position, name in enumerate(op.operands()):
            uses[name].append((index, position))
    made = Space(
        fixed,
        mesh,
        pins,
        setting,
        values,
        tuple(found),
        {},
        {name: tuple(places) for name, places in uses.items()},
        batch_dims,
        storage_bases(fixed),
        held_anyway(fixed),
        last,
    )
    fused = fused_shares(fixed) if setting.compile else {}
    shares = [fused.get(op.name, 1.0) for op in fixed.ops]
    seconds = _of_each(
        list(zip(kinds, shares, strict=True)),
        list(zip(fixed.ops, found, shares, strict=True)),
        lambda one: [_seconds(made, one[0], strategy, one[2]) for strategy in one[1]],
    )
    for op, each in zip(fixed.ops, seconds, strict=True):
        if not each:
            raise PlanError(f"no way is left to run {op.target}", "pins that agree with the batch", "drop one of them")
    made.op_costs.extend(np.array([one.forward_s + one.backward_s for one in each]) for each in seconds)
    made.op_weight_s.extend(np.array([one.weight_s for one in each]) for each in seconds)
    made.op_host_s.extend(min((one.host_s for one in each), default=0.0) for each in seconds)
    made.op_kept.extend(saved_tensor_costs(made, [min(one.forward_s for one in each) for each in seconds]))
    return made


def _kinds(graph: SegmentGraph, weights: Collection[str]) -> list[object]:
    """Of each op, what its strategies and their seconds follow from: ops of one kind differ in names alone."""
    values, found = graph.values(), list[object]()
    for op in graph.ops:
        names = dict.fromkeys((*op.operands(), *(value.name for value in op.results)))
        places = {name: Ref(str(place)) for place, name in enumerate(names)}
        plain = op.map(lambda leaf, places=places: places[leaf.name] if isinstance(leaf, Ref) else leaf)
        seen = tuple((values[name].type, values[name].grad, name in weights) for name in names)
        found.append((op.target, plain.args, plain.kwargs, seen))
    return found


def _of_each(kinds: Sequence[object], items: Sequence[T], make: Callable[[T], R]) -> list[R]:
    """What is made of each item, once for those of one kind."""
    known: dict[object, R] = {}
    return [
        known[kind] if kind in known else known.setdefault(kind, make(item))
        for kind, item in zip(kinds, items, strict=True)
    ]


class _Seconds(NamedTuple):
    """Of a strategy, per micro-batch. weight_s: of backward, the weights' gradients. host_s: of kernel launches."""

    forward_s: float
    backward_s: float
    weight_s: float
    host_s: float


def _seconds(space: Space, op: Op, made: Strategy, share: float) -> _Seconds:
    """Local work and the collectives inside the lowering, forward and backward."""
    mesh = space.mesh
    seconds = op_seconds(op, made, space.values, mesh.device, share)
    forward_s = seconds.forward_s + collectives_s(made.collectives_forward, mesh)
    host_s = seconds.forward_host_s + seconds.backward_host_s
    if not any(value.grad for value in op.results):
        return _Seconds(forward_s, 0.0, 0.0, host_s)
    backward_s = seconds.backward_s + collectives_s(made.collectives_backward, mesh)
    return _Seconds(forward_s, backward_s, seconds.weight_s, host_s)


def conversions_s(space: Space, name: str, made: LayoutSet, wants: LayoutSet) -> Matrix:
    """Seconds of each conversion, forward and backward; without a gradient there is no backward."""
    value = space.values[name]
    return conversion_matrix(made, wants, value.type.sizes, value.type.itemsize, space.mesh, value.grad)


def boundary_layouts(space: Space, name: str, image_cuts: int = ALL) -> tuple[Layout, ...]:
    """Layouts in which a value may cross from one segment to the next: on each axis `I` or evenly sharded."""
    mesh, pins, batch_dims = space.mesh, space.pins, space.batch_dims[name]
    shapes = [values[name].type.sizes for values in (space.values, space.last) if values]
    shape = shapes[0]
    states: list[list[State]] = []
    for axis, size in enumerate(mesh.sizes):
        dims = [dim for dim in range(len(shape)) if all(one[dim] % size == 0 for one in shapes)]
        sharded = axis in pins.dp_axes
        if axis in pins.dp_axes:
            dims = [dim for dim in dims if dim in batch_dims]
        elif axis in pins.cp_axes:
            dims = [dim for dim in dims if dim in sequence_dims(len(shape), batch_dims)]
            sharded = True
        elif axis in pins.model_axes:
            dims = [dim for dim in dims if dim not in batch_dims]
        elif axis in pins.tp_axes:
            dims = [dim for dim in dims if dim not in batch_dims and pins.sequence is not False]
            sharded = pins.sequence is True
        elif pins.sequence is not None and not pins.tp_axes:  # any other axis may be tensor parallel
            dims = dims if pins.sequence else [dim for dim in dims if dim in batch_dims]
            sharded = pins.sequence
        states.append([*([] if sharded and dims else [I]), *map(S, dims)])
    every = map(Layout, product(*states))
    found = tuple(layout for layout in every if all(layout.is_even(one, mesh.sizes) for one in shapes))
    if len(shape) > IMAGE_DIMS:
        found = boundary_subset(found, image_cuts)
    if not found:
        given = f"{name} of shape {shape} on a mesh of {'x'.join(map(str, mesh.sizes))}"
        raise PlanError(given, "samples that the axes divide together", "change the batch or the pins")
    return found


def sequence_dims(rank: int, batch_dims: frozenset[int]) -> tuple[int, ...]:
    """Dims that context parallelism splits: those between samples and the last one, which holds features."""
    return tuple(dim for dim in range(1, rank - 1) if dim not in batch_dims)


def skip_layout(space: Space, name: str, sharded: tuple[bool, ...]) -> Layout:
    """The boundary layout that shards samples over just these axes, or the nearest to it."""
    batch_dims = space.batch_dims[name]
    found = boundary_layouts(space, name)

    def misses(layout: Layout) -> int:
        states = zip(layout.states, sharded, strict=True)
        return sum((state.dim in batch_dims) != yes or (not yes and state.is_shard) for state, yes in states)

    return min(found, key=misses)


def operand_layouts(space: Space, place: tuple[int, int]) -> list[Layout]:
    """The layout of one operand of an op under each of its strategies."""
    index, position = place
    name = space.graph.ops[index].operands()[position]
    grad = space.values[name].grad
    return [canonical(made.operands[position], grad) for made in space.strategies[index]]


def _batch_dims(type_: TensorType) -> frozenset[int]:
    return frozenset(dim for dim, size in enumerate(type_.shape) if isinstance(size, BatchSize))
