"""Apply conversions to real tensors: forward, and the dual backward.

Each step is an autograd Function whose forward and backward call the raw collectives, so that a trace of forward
and gradient shows exactly those ops. Uneven pieces are padded before they travel and trimmed after; even ones
need neither, nor this rank's coordinates, so their traces are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from meshwright.cluster.bind import logical_mesh
from meshwright.cluster.mesh import FLAT, Mesh
from meshwright.errors import LayoutError
from meshwright.layout import collectives as ops
from meshwright.layout.path import Conversion, conversion
from meshwright.layout.states import Layout
from meshwright.layout.steps import Step
from meshwright.layout.transport import current_transport

MeshLike = Mesh | Mapping[str, int]


def convert(
    x: Tensor,
    source: Layout,
    target: Layout,
    mesh: MeshLike,
    *,
    shape: tuple[int, ...] | None = None,
    grad: bool = True,
) -> Tensor:
    """This rank's piece of a value in `source`, as its piece in `target`; the gradient takes the dual path.

    `shape` is the global shape; without it, pieces are taken to be even. `grad=False` says that no gradient
    will flow, which makes R and I the same.
    """
    path, place = _plan(x, source, target, source, mesh, shape, grad)
    for step in path.steps:
        x = _Apply.apply(x, step, place)  # type: ignore[no-untyped-call]
    return x


def convert_value(
    x: Tensor,
    source: Layout,
    target: Layout,
    mesh: MeshLike,
    *,
    shape: tuple[int, ...] | None = None,
    grad: bool = True,
) -> Tensor:
    """The forward of `convert` alone, on the same path, outside autograd."""
    path, place = _plan(x, source, target, source, mesh, shape, grad)
    with torch.no_grad():
        for step in path.steps:
            x = run_op(step.forward, x, step.axes, step.source, step.target, place)
    return x


def convert_gradient(
    gradient: Tensor, source: Layout, target: Layout, mesh: MeshLike, *, shape: tuple[int, ...] | None = None
) -> Tensor:
    """The backward of `convert(source -> target)` alone: a gradient of the target becomes one of the source."""
    path, place = _plan(gradient, source, target, target, mesh, shape, True)
    with torch.no_grad():
        for step in reversed(path.steps):
            gradient = run_op(step.backward, gradient, step.axes, step.target, step.source, place)
    return gradient


@dataclass(frozen=True, slots=True)
class Place:
    """The tensor's global shape and this rank's coordinates; None when all pieces on the way are even."""

    mesh: Mesh
    shape: tuple[int, ...]
    coordinates: tuple[int, ...] | None

    def local(self, layout: Layout) -> tuple[int, ...]:
        return layout.local_shape(self.shape, self.mesh.sizes, self.coordinates)


def _plan(
    x: Tensor,
    source: Layout,
    target: Layout,
    held: Layout,
    mesh: MeshLike,
    shape: tuple[int, ...] | None,
    grad: bool,
) -> tuple[Conversion, Place]:
    mesh = mesh if isinstance(mesh, Mesh) else logical_mesh(mesh)
    held.check(shape if shape is not None else x.shape, mesh.sizes)
    if shape is None:
        shape = held.global_shape(x.shape, mesh.sizes)
    target.check(shape, mesh.sizes)
    path = conversion(source, target, shape, x.element_size(), mesh, grad)
    place = _place(path, mesh, shape)
    if tuple(x.shape) != place.local(held):
        raise LayoutError(
            f"a piece of shape {tuple(x.shape)} in layout {held} of {shape} on {mesh}",
            f"shape {place.local(held)}",
            "pass `shape=` if sizes are uneven",
        )
    return path, place


def _place(path: Conversion, mesh: Mesh, shape: tuple[int, ...]) -> Place:
    layouts = (path.source, *(step.target for step in path.steps))
    if all(layout.is_even(shape, mesh.sizes) for layout in layouts):
        return Place(mesh, shape, None)
    transport = current_transport()
    return Place(mesh, shape, tuple(transport.index(name) for name in mesh.names))


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Step, place: Place) -> Tensor:
        ctx.step, ctx.place = step, place
        out = run_op(step.forward, x, step.axes, step.source, step.target, place)
        return x.view_as(x) if out is x else out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        step: Step = ctx.step
        return run_op(step.backward, gradients[0], step.axes, step.target, step.source, ctx.place), None, None


def run_op(op: str, x: Tensor, axes: tuple[int, ...], before: Layout, after: Layout, place: Place) -> Tensor:
    """Run one op of a step on this rank's piece: `before` and `after` are the layouts around it."""
    sizes = [place.mesh.sizes[i] for i in axes]
    if op == "none" or prod(sizes) == 1:
        return x
    if op in ("all_reduce", "keep_on_first"):
        whole: Tensor = getattr(ops, op)(x, FLAT.join(place.mesh.names[i] for i in axes))
        return whole
    if len(axes) > 1:
        return _run_flattened(op, x, axes, before, after, place)
    return _run_single(op, x, axes[0], before, after, place)


def _run_single(op: str, x: Tensor, axis: int, before: Layout, after: Layout, place: Place) -> Tensor:
    """One axis. Pieces are padded to the even width that `torch.chunk` gives all but the last ones."""
    name, size = place.mesh.names[axis], place.mesh.sizes[axis]
    local_before, local_after = place.local(before), place.local(after)
    joined, cut = before[axis].dim, after[axis].dim
    if joined is not None:
        x = _pad(x, joined, -(-local_after[joined] // size))
    if cut is not None:
        x = _pad(x, cut, -(-local_before[cut] // size) * size)
    if op == "all_to_all":
        x = ops.all_to_all(x, cut, joined, name, size)
    else:
        x = getattr(ops, op)(x, joined if joined is not None else cut, name, size)
    return _trim(x, local_after)


def _pad(x: Tensor, dim: int, length: int) -> Tensor:
    missing = length - x.shape[dim]
    if not missing:
        return x
    return torch.nn.functional.pad(x, [0, 0] * (x.ndim - 1 - dim) + [0, missing])


def _trim(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    for dim, length in enumerate(shape):
        if x.shape[dim] != length:
            x = x.narrow(dim, 0, length)
    return x


def _run_flattened(op: str, x: Tensor, axes: tuple[int, ...], before: Layout, after: Layout, place: Place) -> Tensor:
    """Several axes in one collective over their flattened group; pieces are even (see `moves`)."""
    sizes = [place.mesh.sizes[i] for i in axes]
    name, size = FLAT.join(place.mesh.names[i] for i in axes), prod(sizes)
    cut = [dim for i in axes if (dim := after[i].dim) is not None]
    joined = [dim for i in axes if (dim := before[i].dim) is not None]
    if op == "take_slice":
        for i, dim in zip(axes, cut, strict=True):
            x = ops.take_slice(x, dim, place.mesh.names[i], place.mesh.sizes[i])
    elif op == "all_to_all":
        x = ops.all_to_all(x, cut[0], joined[0], name, size)
    elif op == "all_gather" and len(set(joined)) == 1:
        x = ops.all_gather(x, joined[0], name, size)
    elif op == "all_gather":
        x = _interleave(ops.all_gather(x, 0, name, size), sizes, joined)
    elif len(set(cut)) == 1:
        x = ops.reduce_scatter(x, cut[0], name, size)
    else:
        x = ops.reduce_scatter(_deal(x, sizes, cut), 0, name, size)
    return x


def _interleave(stacked: Tensor, sizes: list[int], dims: list[int]) -> Tensor:
    """Pieces of a flattened group, stacked on dim 0 in rank order, put together along each axis's own dim."""
    n, local = len(sizes), [stacked.shape[0] // prod(sizes), *stacked.shape[1:]]
    order: list[int] = []
    for dim in range(len(local)):
        order += [i for i in range(n) if dims[i] == dim] + [n + dim]
    shape = [length * prod(sizes[i] for i in range(n) if dims[i] == dim) for dim, length in enumerate(local)]
    return stacked.reshape(*sizes, *local).permute(order).reshape(shape)


def _deal(x: Tensor, sizes: list[int], dims: list[int]) -> Tensor:
    """The inverse of `_interleave`: cut each dim by its axes and stack the pieces on dim 0 in rank order."""
    n = len(sizes)
    split: list[int] = []
    where: dict[int, int] = {}
    rest: list[int] = []
    local: list[int] = []
    for dim, length in enumerate(x.shape):
        for i in (i for i in range(n) if dims[i] == dim):
            where[i] = len(split)
            split.append(sizes[i])
            length //= sizes[i]
        rest.append(len(split))
        split.append(length)
        local.append(length)
    dealt = x.reshape(split).permute([where[i] for i in range(n)] + rest)
    return dealt.reshape([prod(sizes) * local[0], *local[1:]])
