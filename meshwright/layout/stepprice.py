"""What one step costs on one rank: collectives with their bytes, seconds, and bytes it allocates.

Prices are those of the first rank of the mesh, whose pieces are largest when sizes are uneven: pieces are padded
to that size before they travel, so this is what every rank sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from meshwright.cluster.cost import collective_s
from meshwright.cluster.mesh import FLAT, Axis, Mesh
from meshwright.layout.states import Layout
from meshwright.layout.steps import COMMUNICATING, Collective, Op, Step


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
    return Pricer(shape, itemsize, mesh, grad).price(step)


@dataclass(frozen=True, slots=True)
class _OpPrice:
    collectives: tuple[Collective, ...]
    seconds: float
    bytes: int


_FREE = _OpPrice((), 0.0, 0)


class _Piece(NamedTuple):
    """A layout's piece on the first rank: the dim that each axis shards, its shape, its items, whether all are so."""

    dims: tuple[int | None, ...]
    shape: tuple[int, ...]
    items: int
    even: bool


class Pricer:
    """Prices the steps of one tensor. Many steps run the same op on the same bytes, so those are kept."""

    def __init__(self, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> None:
        self.shape, self.itemsize, self.mesh, self.grad = shape, itemsize, mesh, grad
        self._sizes, self._device = mesh.sizes, mesh.device
        self._all_even = all(length % prod(self._sizes) == 0 for length in shape)
        self._axes: dict[tuple[int, ...], Axis] = {}
        self._pieces: dict[Layout, _Piece] = {}
        self._ops: dict[tuple[Op, int, int, bool], _OpPrice] = {}

    def price(self, step: Step) -> StepPrice:
        source, target = self._piece(step.source), self._piece(step.target)
        forward = self._op(step.forward_op, source, target)
        backward = self._op(step.backward_op, target, source) if self.grad else _FREE
        return StepPrice(
            forward.collectives,
            backward.collectives,
            forward.seconds,
            backward.seconds,
            source.items * self.itemsize,
            target.items * self.itemsize,
            forward.bytes,
            backward.bytes,
        )

    def _piece(self, layout: Layout) -> _Piece:
        found = self._pieces.get(layout)
        if found is None:
            shape = layout.local_shape(self.shape, self._sizes)
            even = self._all_even or layout.is_even(self.shape, self._sizes)
            found = self._pieces[layout] = _Piece(tuple(s.dim for s in layout), shape, prod(shape), even)
        return found

    def _axis(self, axes: tuple[int, ...]) -> Axis:
        found = self._axes.get(axes)
        if found is None:
            found = self._axes[axes] = self.mesh.axis(FLAT.join(self.mesh.names[i] for i in axes))
        return found

    def _op(self, op: Op, before: _Piece, after: _Piece) -> _OpPrice:
        """One op from piece `before` to `after`: it joins dims that the one shards and cuts those of the other."""
        if op.kind == "none":
            return _FREE
        moved = 0 if op.kind not in COMMUNICATING else _moved_items(op, before, after, self._axis(op.axes).size)
        # Pieces along an inner dim, along several dims or of several sizes are put in order on one side of the wire.
        staged = any(before.dims[i] or after.dims[i] for i in op.axes)
        if len(op.axes) > 1 and not (before.even and after.even):
            staged = True
        key = (op, moved, after.items, staged)
        found = self._ops.get(key)
        if found is None:
            found = self._ops[key] = self._fresh(*key)
        return found

    def _fresh(self, op: Op, moved: int, after: int, staged: bool) -> _OpPrice:
        axis, device, after_bytes = self._axis(op.axes), self._device, after * self.itemsize
        copied = _OpPrice((), device.launch_s + 2 * after_bytes / device.memory_bandwidth, after_bytes)
        sliced = any(self._sizes[i] > 1 for i in op.sliced)
        if axis.size == 1:
            return copied if sliced else _FREE
        if op.kind not in COMMUNICATING:
            return copied
        moved_bytes = moved * self.itemsize
        seconds = collective_s(op.kind, moved_bytes, axis)
        if sliced:  # of the slice, one more copy of what is sent
            seconds += device.launch_s + 2 * moved_bytes / device.memory_bandwidth
        if staged:
            seconds += 2 * moved_bytes / device.memory_bandwidth
        staging_bytes = moved_bytes if staged or sliced else 0
        return _OpPrice((Collective(op.kind, axis.name, moved_bytes),), seconds, after_bytes + staging_bytes)


def _moved_items(op: Op, before: _Piece, after: _Piece, size: int) -> int:
    """Items counted for a collective by the convention of `Collective.bytes`, padding included."""
    if op.kind == "all_reduce":
        return before.items
    if op.kind == "all_gather":
        return before.items * size
    if op.kind == "reduce_scatter":
        return after.items * size
    # All-to-all: the dims that are cut are first padded to equal pieces.
    cut = {after.dims[i] for i in op.axes}
    return size * prod(after.shape[dim] if dim in cut else length for dim, length in enumerate(before.shape))
