"""What one step costs on one rank: collectives with their bytes, seconds, and bytes it allocates.

Prices are those of the first rank of the mesh, whose pieces are largest when sizes are uneven: pieces are padded
to that size before they travel, so this is what every rank sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshwright.cluster.cost import collective_s
from meshwright.cluster.mesh import FLAT, Axis, Mesh
from meshwright.layout.states import Layout
from meshwright.layout.steps import COMMUNICATING, Collective, Step


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


class Pricer:
    """Prices the steps of one tensor. Many steps run the same op on the same bytes, so those are kept."""

    def __init__(self, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> None:
        self.shape, self.itemsize, self.mesh, self.grad = shape, itemsize, mesh, grad
        self._sizes, self._device = mesh.sizes, mesh.device
        self._axes: dict[tuple[int, ...], Axis] = {}
        self._shapes: dict[Layout, tuple[int, ...]] = {}
        self._ops: dict[tuple[str, tuple[int, ...], int, int, bool], _OpPrice] = {}

    def price(self, step: Step) -> StepPrice:
        source, target = self._local(step.source), self._local(step.target)
        forward = self._op(step.forward, step.axes, source, target, step.source, step.target)
        backward = _FREE
        if self.grad:
            backward = self._op(step.backward, step.axes, target, source, step.target, step.source)
        return StepPrice(
            forward.collectives,
            backward.collectives,
            forward.seconds,
            backward.seconds,
            prod(source) * self.itemsize,
            prod(target) * self.itemsize,
            forward.bytes,
            backward.bytes,
        )

    def _local(self, layout: Layout) -> tuple[int, ...]:
        found = self._shapes.get(layout)
        if found is None:
            found = self._shapes[layout] = layout.local_shape(self.shape, self._sizes)
        return found

    def _axis(self, axes: tuple[int, ...]) -> Axis:
        found = self._axes.get(axes)
        if found is None:
            found = self._axes[axes] = self.mesh.axis(FLAT.join(self.mesh.names[i] for i in axes))
        return found

    def _op(
        self,
        op: str,
        axes: tuple[int, ...],
        before: tuple[int, ...],
        after: tuple[int, ...],
        joins: Layout,
        cuts: Layout,
    ) -> _OpPrice:
        """One op from local shape `before` to `after`: it joins dims that `joins` shards and cuts those of `cuts`."""
        axis = self._axis(axes)
        if op == "none" or axis.size == 1:
            return _FREE
        moved = _moved_items(op, before, after, cuts[axes[0]].dim, axis.size)
        # Pieces along an inner dim, or along several dims, are made contiguous on one side of the wire.
        staged = any(joins[i].dim or cuts[i].dim for i in axes)
        key = (op, axes, moved, prod(after), staged)
        found = self._ops.get(key)
        if found is None:
            found = self._ops[key] = self._fresh(op, axis, moved, prod(after), staged)
        return found

    def _fresh(self, op: str, axis: Axis, moved: int, after: int, staged: bool) -> _OpPrice:
        device, after_bytes = self._device, after * self.itemsize
        if op not in COMMUNICATING:
            return _OpPrice((), device.launch_s + 2 * after_bytes / device.memory_bandwidth, after_bytes)
        moved_bytes = moved * self.itemsize
        staging_bytes = moved_bytes if staged else 0
        seconds = collective_s(op, moved_bytes, axis) + 2 * staging_bytes / device.memory_bandwidth
        return _OpPrice((Collective(op, axis.name, moved_bytes),), seconds, after_bytes + staging_bytes)


def _moved_items(op: str, before: tuple[int, ...], after: tuple[int, ...], cut: int | None, size: int) -> int:
    """Items counted for a collective by the convention of `Collective.bytes`, padding included."""
    if op == "all_reduce":
        return prod(before)
    if op == "all_gather":
        return prod(before) * size
    if op == "reduce_scatter":
        return prod(after) * size
    if op != "all_to_all" or cut is None:
        return 0
    # The dim that is cut is first padded to `size` equal pieces.
    return prod(before[:cut]) * after[cut] * size * prod(before[cut + 1 :])
