"""Storage options of a parameter, for every layout in which it may be used."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from meshwright.caches import CACHES
from meshwright.capture.program import Value
from meshwright.cluster import Mesh
from meshwright.errors import PlanError
from meshwright.layout import I, Layout, S, State
from meshwright.pins.pins import Pins
from meshwright.plan import ParameterPlan
from meshwright.planner.space.uneven import is_worth
from meshwright.price.parameter import Setting


def parameter_options(
    value: Value, full_name: str, wishes: Iterable[Layout], mesh: Mesh, pins: Pins, setting: Setting
) -> tuple[ParameterPlan, ...]:
    """wishes: the layouts of its readers' operands."""
    # A reader of a partial layout uses it whole: the conversion, inside the segment, is free.
    computes = dict.fromkeys(Layout(tuple(I if state.kind == "P" else state for state in wish)) for wish in wishes)
    dtype, several = setting.storage_dtype(value.type.dtype), setting.microbatches > 1
    pinned = pins.storage_of(full_name)
    offload = setting.offload_of(full_name, value.grad)
    found = _options(tuple(computes), value.type.sizes, value.grad, dtype, mesh, pins, pinned, several, offload)
    if not found:
        raise PlanError(f"no way is left to use parameter {full_name}", "pins that agree", "drop one of them")
    return found


@CACHES.memoized(maxsize=4096)
def _options(
    computes: tuple[Layout, ...],
    shape: tuple[int, ...],
    grad: bool,
    dtype: str,
    mesh: Mesh,
    pins: Pins,
    pinned: Layout | None,
    several: bool,
    offload: str,
) -> tuple[ParameterPlan, ...]:
    found = []
    for compute in computes:
        for storage in _storages(compute, shape, grad, mesh, pins) if pinned is None else (pinned,):
            gathered = storage.shard_factor(mesh.sizes) > compute.shard_factor(mesh.sizes)
            found += [
                ParameterPlan(str(storage), str(compute), dtype, again, each, offload)
                for again, each in (
                    _host_gather_times(pins.zero)
                    if offload == "weight"
                    else _gather_times(gathered, pins.zero, several)
                )
            ]
    return tuple(found)


def _host_gather_times(zero: int | None) -> tuple[tuple[bool, bool], ...]:
    """`_gather_times` of a weight on the host: fetched once or for each use, its gradient sent once."""
    return ((True, False),) if zero == 3 else ((False, False), (True, False)) if zero is None else ((False, False),)


def _gather_times(gathered: bool, zero: int | None, several: bool) -> tuple[tuple[bool, bool], ...]:
    """(reshard_after_forward, reduce_scatter_every_microbatch) of each ZeRO stage that the pin allows."""
    if not gathered:
        return ((False, False),)
    stages = {1: (False, False), 2: (False, several), 3: (True, several)}
    return tuple(dict.fromkeys(stages.values())) if zero is None else (stages.get(zero, (False, False)),)


def _storages(compute: Layout, shape: tuple[int, ...], grad: bool, mesh: Mesh, pins: Pins) -> list[Layout]:
    """Storage layouts: sharded or invariant, since the optimizer needs a reduced gradient.

    An axis shards the first dim that it divides, or else the first that it nearly divides. Under a `zero` pin all axes
    shard; a parameter that is too small for all of them is sharded over as many devices as possible.
    """
    asked: list[list[State]] = []
    fewer: list[list[State]] = []
    for axis, state in enumerate(compute.states):
        zero, cuts = pins.zero_of(axis), _cuts(compute, mesh.sizes[axis], shape) if grad else []
        if state.is_shard or zero == 0 or not cuts:
            asked.append([state if state.is_shard else I])
        else:
            asked.append(cuts[:1] if zero else [I, *cuts[:1]])
        fewer.append([I, *cuts] if zero and not state.is_shard else asked[-1])
    found = _even_layouts(asked, shape, mesh)
    most = max(_even_layouts(fewer, shape, mesh), key=lambda layout: layout.shard_factor(mesh.sizes), default=None)
    return found or ([most] if most else [])


def _cuts(compute: Layout, size: int, shape: tuple[int, ...]) -> list[State]:
    """Shards of a stored parameter over an axis of `size`: of dims that it divides, or else nearly divides."""
    free = [(dim, length) for dim, length in enumerate(shape) if not compute.sharding(dim)]
    even = [dim for dim, length in free if length % size == 0]
    return [S(dim) for dim in even or [dim for dim, length in free if is_worth(length, size)]]


def _even_layouts(per_axis: list[list[State]], shape: tuple[int, ...], mesh: Mesh) -> list[Layout]:
    return [layout for layout in map(Layout, product(*per_axis)) if layout.is_plain(shape, mesh.sizes)]
