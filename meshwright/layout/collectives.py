"""Raw collectives as custom ops in the namespace `meshwright`. All but `exchange_rows` have no autograd of their own.

Sizes are arguments, so that fakes need no process group; rank-dependent ops read the rank when they run, so that
a traced graph is the same on every rank. Each op returns a fresh tensor, as custom ops must.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from meshwright.layout.record import note, note_bytes
from meshwright.layout.transport import ProcessTransport, current_transport


def _split(x: Tensor, dim: int, size: int) -> Tensor:
    """Cut `dim` into `size` equal pieces, stacked along a new leading dim."""
    shape = [*x.shape[:dim], size, x.shape[dim] // size, *x.shape[dim + 1 :]]
    return x.reshape(shape).movedim(dim, 0)


def _join(pieces: Tensor, dim: int) -> Tensor:
    """Concatenate freshly received pieces along `dim`: the inverse of `_split`."""
    return pieces.movedim(0, dim).flatten(dim, dim + 1).contiguous()


def _resized(x: Tensor, dim: int, length: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = length
    return x.new_empty(shape)


@custom_op("meshwright::all_reduce", mutates_args=())
def all_reduce(x: Tensor, axis: str) -> Tensor:
    """Sum over the ranks of the axis."""
    note("all_reduce", axis, x)
    return current_transport().all_reduce(x, axis, "sum")


def sum_in_place(x: Tensor, axis: str) -> Tensor:
    """As `all_reduce`, in memory that is the caller's own; not an op, so outside graphs only."""
    transport = current_transport()
    if not isinstance(transport, ProcessTransport):
        return x.copy_(all_reduce(x, axis))
    note("all_reduce", axis, x)
    return transport.sum_in_place(x, axis)


def gather_into(out: Tensor, x: Tensor, axis: str) -> Tensor:
    """All ranks' tensors, stacked in `out`; not an op, so outside graphs only."""
    transport = current_transport()
    note("all_gather", axis, out)
    if not isinstance(transport, ProcessTransport):
        return out.copy_(transport.all_gather(x, axis).view(out.shape))
    return transport.gather_into(out, x, axis)


def scatter_into(out: Tensor, pieces: Tensor, axis: str) -> Tensor:
    """This rank's of the stacked pieces, summed over the ranks, in `out`; not an op, so outside graphs only."""
    transport = current_transport()
    note("reduce_scatter", axis, pieces)
    if not isinstance(transport, ProcessTransport):
        return out.copy_(transport.reduce_scatter(pieces, axis).view(out.shape))
    return transport.scatter_into(out, pieces, axis)


@custom_op("meshwright::all_reduce_max", mutates_args=())
def all_reduce_max(x: Tensor, axis: str) -> Tensor:
    """Maximum over the ranks of the axis."""
    note("all_reduce", axis, x)
    return current_transport().all_reduce(x, axis, "max")


@custom_op("meshwright::all_gather", mutates_args=())
def all_gather(x: Tensor, dim: int, axis: str, size: int) -> Tensor:
    """Concatenate the ranks' tensors along `dim`."""
    pieces = current_transport(axis, size).all_gather(x, axis)
    note("all_gather", axis, pieces)
    return _join(pieces, dim)


@custom_op("meshwright::reduce_scatter", mutates_args=())
def reduce_scatter(x: Tensor, dim: int, axis: str, size: int) -> Tensor:
    """Sum over the ranks; each keeps its own of `size` equal pieces of `dim`."""
    note("reduce_scatter", axis, x)
    return current_transport(axis, size).reduce_scatter(_split(x, dim, size), axis)


@custom_op("meshwright::all_to_all", mutates_args=())
def all_to_all(x: Tensor, split_dim: int, concat_dim: int, axis: str, size: int) -> Tensor:
    """Send piece i of `split_dim` to rank i; concatenate what arrives along `concat_dim`."""
    note("all_to_all", axis, x)
    return _join(current_transport(axis, size).all_to_all(_split(x, split_dim, size), axis), concat_dim)


@custom_op("meshwright::exchange_rows", mutates_args=())
def exchange_rows(x: Tensor, counts: Tensor, rows: int, axis: str, size: int, back: bool) -> Tensor:
    """Send rows, sorted by group, to the ranks that hold their groups; there they stand group by group.

    `counts` [size, groups]: every rank's rows of every group; rank i holds the i-th part of the groups. `back`
    undoes it. A rank sends or gets back all of its own `rows`; how many it holds in between is data.
    """
    mine = current_transport(axis, size).index(axis)
    parts = counts.reshape(size, size, -1)
    sent, held = parts[mine].sum(1).tolist(), parts[:, mine].sum(1).tolist()
    groups = torch.arange(parts.shape[2], device=x.device).repeat(size)
    order = groups.repeat_interleave(parts[:, mine].flatten().to(x.device)).argsort(stable=True)
    note_bytes("all_to_all", axis, rows * x.shape[1:].numel() * x.element_size())
    if back:
        return current_transport().exchange(x[order.argsort()], held, sent, axis)
    return current_transport().exchange(x, sent, held, axis)[order]


@custom_op("meshwright::ring_shift", mutates_args=())
def ring_shift(x: Tensor, axis: str, size: int) -> Tensor:
    """Hand the tensor to the next rank of the axis, and take the one before's."""
    note("send", axis, x)
    mine = current_transport(axis, size).index(axis)
    sent, received = ([int(rank == (mine + way) % size) for rank in range(size)] for way in (1, -1))
    moved = current_transport().exchange(x.contiguous().view(1, -1), sent, received, axis)
    return moved.view(x.shape)


@custom_op("meshwright::take_slice", mutates_args=())
def take_slice(x: Tensor, dim: int, axis: str, size: int) -> Tensor:
    """This rank's own of `size` equal pieces of `dim`."""
    length = x.shape[dim] // size
    piece = x.narrow(dim, current_transport(axis, size).index(axis) * length, length)
    return piece.clone(memory_format=torch.contiguous_format)


@custom_op("meshwright::place_slice", mutates_args=())
def place_slice(x: Tensor, dim: int, axis: str, size: int) -> Tensor:
    """`size` times as long in `dim`: this rank's tensor at its own place, zeros elsewhere."""
    length = x.shape[dim]
    out = _resized(x, dim, length * size).zero_()
    out.narrow(dim, current_transport(axis, size).index(axis) * length, length).copy_(x)
    return out


@custom_op("meshwright::keep_on_first", mutates_args=())
def keep_on_first(x: Tensor, axis: str) -> Tensor:
    """The tensor on the first rank of the axis, zeros on the others: a partial whose sum it is."""
    if current_transport().index(axis) == 0:
        return x.clone(memory_format=torch.contiguous_format)
    return torch.zeros_like(x, memory_format=torch.contiguous_format)


@custom_op("meshwright::axis_index", mutates_args=())
def axis_index(axis: str) -> Tensor:
    """This rank's coordinate on the axis, as a 0-d int64 tensor on the CPU."""
    return torch.tensor(current_transport().index(axis), dtype=torch.int64)


@all_reduce.register_fake
@all_reduce_max.register_fake
@keep_on_first.register_fake
@ring_shift.register_fake
def _same(x: Tensor, axis: str, size: int = 0) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@all_gather.register_fake
@place_slice.register_fake
def _longer(x: Tensor, dim: int, axis: str, size: int) -> Tensor:
    return _resized(x, dim, x.shape[dim] * size)


@reduce_scatter.register_fake
@take_slice.register_fake
def _shorter(x: Tensor, dim: int, axis: str, size: int) -> Tensor:
    return _resized(x, dim, x.shape[dim] // size)


@all_to_all.register_fake
def _turned(x: Tensor, split_dim: int, concat_dim: int, axis: str, size: int) -> Tensor:
    shape = list(x.shape)
    shape[split_dim] //= size
    shape[concat_dim] *= size
    return x.new_empty(shape)


@exchange_rows.register_fake
def _exchanged(x: Tensor, counts: Tensor, rows: int, axis: str, size: int, back: bool) -> Tensor:
    return x.new_empty(rows if back else torch.library.get_ctx().new_dynamic_size(), *x.shape[1:])


def _keep_counts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, counts, ctx.rows, ctx.axis, ctx.size, ctx.back = inputs
    ctx.save_for_backward(counts)


def _exchange_again(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None]:
    (counts,) = ctx.saved_tensors
    back = exchange_rows(gradient.contiguous(), counts, ctx.rows, ctx.axis, ctx.size, not ctx.back)
    return back, None, None, None, None, None


exchange_rows.register_autograd(_exchange_again, setup_context=_keep_counts)


@axis_index.register_fake
def _scalar(axis: str) -> Tensor:
    return torch.empty((), dtype=torch.int64)
