"""What one step costs on one rank: collectives with their bytes, seconds, and bytes it allocates.

Prices are those of the first rank of the mesh, whose pieces are largest when sizes are uneven: pieces are padded
to that size before they travel, so this is what every rank sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from meshwright.cluster.cost import collective_s
from meshwright.cluster.device import Device
from meshwright.cluster.mesh import FLAT, Axis, Mesh
from meshwright.layout.states import Layout
from meshwright.layout.steps import COMMUNICATING, Collective, Step

_axis_seconds = lru_cache(maxsize=1 << 16)(collective_s)


@dataclass(frozen=True, slots=True)
class StepPrice:
    """`*_bytes` of forward and backward: the output and any staging copy, not the input."""

    forward: tuple[Collective, ...]
    backward: tuple[Collective, ...]
    forward_s: float
    backward_s: float
    source_bytes: int
    target_bytes: int
    forward_bytes: int
    backward_bytes: int

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


def price_step(step: Step, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> StepPrice:
    """Price a step of a tensor of global `shape`; without `grad` nothing runs backward."""
    source = step.source.local_shape(shape, mesh.sizes)
    target = step.target.local_shape(shape, mesh.sizes)
    source_dims, target_dims = _dims(step.source, step.axes), _dims(step.target, step.axes)
    axis = mesh.axis(FLAT.join(mesh.names[i] for i in step.axes))
    forward = _price_op(step.forward, source, target, source_dims, target_dims, itemsize, axis, mesh.device)
    backward = _FREE
    if grad:
        backward = _price_op(step.backward, target, source, target_dims, source_dims, itemsize, axis, mesh.device)
    return StepPrice(
        forward.collectives,
        backward.collectives,
        forward.seconds,
        backward.seconds,
        prod(source) * itemsize,
        prod(target) * itemsize,
        forward.bytes,
        backward.bytes,
    )


@dataclass(frozen=True, slots=True)
class _OpPrice:
    collectives: tuple[Collective, ...]
    seconds: float
    bytes: int


_FREE = _OpPrice((), 0.0, 0)


def _dims(layout: Layout, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The dims that these axes shard."""
    return tuple(dim for i in axes if (dim := layout[i].dim) is not None)


def _price_op(
    op: str,
    before: tuple[int, ...],
    after: tuple[int, ...],
    joined: tuple[int, ...],
    cut: tuple[int, ...],
    itemsize: int,
    axis: Axis,
    device: Device,
) -> _OpPrice:
    """One op from local shape `before` to `after`; it puts the dims `joined` together and cuts the dims `cut`."""
    if op == "none" or axis.size == 1:
        return _FREE
    after_bytes = prod(after) * itemsize
    if op not in COMMUNICATING:
        return _OpPrice((), device.launch_s + 2 * after_bytes / device.memory_bandwidth, after_bytes)
    moved_bytes = _moved_items(op, before, after, cut, axis.size) * itemsize
    # Pieces along an inner dim, or along several dims, are made contiguous on one side of the wire.
    staging_bytes = moved_bytes if any(joined) or any(cut) else 0
    seconds = _axis_seconds(op, moved_bytes, axis) + 2 * staging_bytes / device.memory_bandwidth
    return _OpPrice((Collective(op, axis.name, moved_bytes),), seconds, after_bytes + staging_bytes)


def _moved_items(op: str, before: tuple[int, ...], after: tuple[int, ...], cut: tuple[int, ...], size: int) -> int:
    """Items counted for a collective by the convention of `Collective.bytes`, padding included."""
    if op == "all_reduce":
        return prod(before)
    if op == "all_gather":
        return prod(before) * size
    if op == "reduce_scatter":
        return prod(after) * size
    padded = list(before)  # all_to_all: the dim that is cut is first padded to `size` equal pieces
    padded[cut[0]] = after[cut[0]] * size
    return prod(padded)
