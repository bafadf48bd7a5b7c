"""Apply conversions to real tensors: forward, and the dual backward.

Each step is an autograd Function whose forward and backward call the raw collectives, so that a trace of forward
and gradient shows exactly those ops. Uneven pieces are padded before they travel and trimmed after; even ones
need neither, nor this rank's coordinates, so their traces are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from meshwright.cluster.logical import logical_mesh
from meshwright.cluster.mesh import FLAT, Mesh
from meshwright.errors import LayoutError
from meshwright.layout import collectives as ops
from meshwright.layout.flattened import Place, padded, run_flattened, trimmed
from meshwright.layout.path import Conversion, conversion
from meshwright.layout.states import Layout
from meshwright.layout.steps import Op, Step
from meshwright.layout.transport import current_transport, installed_transport
from meshwright.torch_compat import is_fake

MeshLike = Mesh | Mapping[str, int]


def convert(
    x: Tensor,
    source: Layout,
    target: Layout,
    mesh: MeshLike,
    *,
    shape: tuple[int, ...] | None = None,
    grad: bool = True,
    at: tuple[int, ...] | None = None,
) -> Tensor:
    """This rank's piece of a value in `source`, as its piece in `target`; the gradient takes the dual path.

    `shape` is the global shape. Without it, pieces must be even, and ranks that hold shards compare their sizes
    first: one small collective per axis, which a given `shape` saves. `grad=False` says that no gradient will flow,
    which makes R and I the same. `at`: this rank's coordinates, for a trace that is made without a transport.
    """
    path, place = _plan(x, source, target, source, mesh, shape, grad, at)
    for step in path.steps:
        x = _Apply.apply(x, step, place)  # type: ignore[no-untyped-call]
    return x


def convert_value(
    x: Tensor, source: Layout, target: Layout, mesh: MeshLike, *, shape: tuple[int, ...] | None = None
) -> Tensor:
    """The forward of `convert` alone, on the same path, outside autograd."""
    path, place = _plan(x, source, target, source, mesh, shape, True)
    with torch.no_grad():
        for step in path.steps:
            x = run_op(step.forward_op, x, step.source, step.target, place)
    return x


def convert_gradient(
    gradient: Tensor, source: Layout, target: Layout, mesh: MeshLike, *, shape: tuple[int, ...] | None = None
) -> Tensor:
    """The backward of `convert(source -> target)` alone: a gradient of the target becomes one of the source."""
    path, place = _plan(gradient, source, target, target, mesh, shape, True)
    with torch.no_grad():
        for step in reversed(path.steps):
            gradient = run_op(step.backward_op, gradient, step.target, step.source, place)
    return gradient


def _plan(
    x: Tensor,
    source: Layout,
    target: Layout,
    held: Layout,
    mesh: MeshLike,
    shape: tuple[int, ...] | None,
    grad: bool,
    at: tuple[int, ...] | None = None,
) -> tuple[Conversion, Place]:
    _check_types(x, source, target, mesh)
    mesh = mesh if isinstance(mesh, Mesh) else logical_mesh(mesh)
    held.check(shape if shape is not None else x.shape, mesh.sizes)
    if source != target and installed_transport() is not None and not is_fake(x):
        for axis in mesh.axes:
            if axis.size > 1:
                current_transport(axis.name, axis.size)
        if shape is None:
            _check_even(x, held, mesh)
    if shape is None:
        shape = held.global_shape(x.shape, mesh.sizes)
    target.check(shape, mesh.sizes)
    path = conversion(source, target, shape, x.element_size(), mesh, grad)
    place = _place(path, mesh, shape, is_fake(x), at)
    if tuple(x.shape) != place.local(held):
        raise LayoutError(
            f"a piece of shape {tuple(x.shape)} in layout {held} of {shape} on {mesh}",
            f"shape {place.local(held)}",
            "pass `shape=` if sizes are uneven",
        )
    return path, place


def _check_types(x: Tensor, source: Layout, target: Layout, mesh: MeshLike) -> None:
    if not isinstance(x, Tensor):
        raise LayoutError(f"a conversion of {x!r}", "a tensor: this rank's piece")
    for layout in (source, target):
        if not isinstance(layout, Layout):
            raise LayoutError(f"layout {layout!r}", "a Layout", 'write Layout.parse("[S(0), R]")')
    if not isinstance(mesh, Mesh | Mapping):
        raise LayoutError(f"mesh {mesh!r}", "a Mesh, or axis names with sizes", 'write {"dp": 2, "tp": 4}')


def _check_even(x: Tensor, held: Layout, mesh: Mesh) -> None:
    """That all ranks hold pieces of one shape: uneven ones would send other sizes than their peers expect."""
    sharding = [axis.name for axis, state in zip(mesh.axes, held, strict=True) if state.is_shard and axis.size > 1]
    if not sharding:
        return
    most_least = torch.tensor([x.shape, [-length for length in x.shape]], dtype=torch.int64, device=x.device)
    for name in sharding:
        most_least = current_transport().all_reduce(most_least, name, "max")
    most, least = most_least.abs().tolist()
    if most != least:
        raise LayoutError(
            f"pieces of a value in {held} have lengths from {least} to {most}",
            "pieces of one shape, where `shape=` is not given",
            "pass `shape=`, the global shape; its pieces are those of `torch.chunk`",
        )


def _place(
    path: Conversion, mesh: Mesh, shape: tuple[int, ...], fake: bool, at: tuple[int, ...] | None = None
) -> Place:
    """Where this rank is. fake: a piece without data, traced where no ranks are, is the first rank's, the largest,
    unless `at` is given."""
    layouts = (path.source, *(step.target for step in path.steps))
    if all(layout.is_even(shape, mesh.sizes) for layout in layouts):
        return Place(mesh, shape, None)
    if fake and installed_transport() is None:
        return Place(mesh, shape, at or (0,) * len(mesh.names))
    transport = current_transport()
    return Place(mesh, shape, tuple(transport.index(name) for name in mesh.names))


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Step, place: Place) -> Tensor:
        ctx.step, ctx.place = step, place
        out = run_op(step.forward_op, x, step.source, step.target, place)
        return x.view_as(x) if out is x else out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        step: Step = ctx.step
        return run_op(step.backward_op, gradients[0], step.target, step.source, ctx.place), None, None


def run_op(op: Op, x: Tensor, before: Layout, after: Layout, place: Place) -> Tensor:
    """Run one op of a step on this rank's piece: `before` and `after` are the layouts around it."""
    op = _without_trivial_axes(op, place.mesh.sizes)
    if op.kind == "none":
        return x
    if op.kind in ("all_reduce", "keep_on_first"):
        whole: Tensor = getattr(ops, op.kind)(x, FLAT.join(place.mesh.names[i] for i in op.axes))
        return whole
    if len(op.axes) + len(op.sliced) > 1:
        return run_flattened(op, x, before, after, place)
    return _run_single(op.kind, x, op.axes[0], before, after, place)


def _without_trivial_axes(op: Op, sizes: tuple[int, ...]) -> Op:
    """The op on a mesh whose axes of size 1 do nothing. A reduce-scatter of one rank leaves its slices."""
    sliced = tuple(i for i in op.sliced if sizes[i] > 1)
    if prod(sizes[i] for i in op.axes) > 1:
        return Op(op.kind, op.axes, sliced)
    return Op("take_slice", sliced) if sliced else Op("none", ())


def _run_single(op: str, x: Tensor, axis: int, before: Layout, after: Layout, place: Place) -> Tensor:
    """One axis. Pieces are padded to the even width that `torch.chunk` gives all but the last ones."""
    name, size = place.mesh.names[axis], place.mesh.sizes[axis]
    local_before, local_after = place.local(before), place.local(after)
    joined, cut = before[axis].dim, after[axis].dim
    if joined is not None:
        x = padded(x, joined, -(-local_after[joined] // size))
    if cut is not None:
        x = padded(x, cut, -(-local_before[cut] // size) * size)
    if op == "all_to_all":
        x = ops.all_to_all(x, cut, joined, name, size)
    else:
        x = getattr(ops, op)(x, joined if joined is not None else cut, name, size)
    return trimmed(x, local_after)
