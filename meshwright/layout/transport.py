"""Transports: what carries a collective named by a mesh axis.

Ops name an axis ("tp", or "dp*tp" for both at once); the transport in force knows the group. `ProcessTransport`
uses torch.distributed; `meshwright.layout.threads` simulates ranks as threads. Every method returns a fresh
tensor, and works on pieces stacked along a new leading dim: callers do the arithmetic of dims.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import prod
from typing import Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from meshwright.cluster.mesh import FLAT
from meshwright.errors import LayoutError

# torch 2.13 renamed these and warns about the old names, which are the only ones that 2.11 has.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Transport(Protocol):
    """What the collective ops need: an axis's ranks, this rank's place among them, and five exchanges."""

    def size(self, axis: str) -> int: ...
    def index(self, axis: str) -> int: ...
    def all_reduce(self, x: Tensor, axis: str, op: str) -> Tensor: ...
    def all_gather(self, x: Tensor, axis: str) -> Tensor: ...
    def reduce_scatter(self, pieces: Tensor, axis: str) -> Tensor: ...
    def all_to_all(self, pieces: Tensor, axis: str) -> Tensor: ...
    def exchange(self, x: Tensor, sent: list[int], received: list[int], axis: str) -> Tensor: ...


class _Installed:
    """The process-wide transport: autograd runs backward on threads of its own, which must find it too."""

    transport: Transport | None = None


_simulated = threading.local()


def installed_transport() -> Transport | None:
    """The transport in force: the simulated rank's own on its thread, else the process's; None where there is none."""
    return getattr(_simulated, "transport", None) or _Installed.transport


def current_transport(axis: str = "", size: int = 0) -> Transport:
    """The transport in force. Given an axis and its size, its group must have as many ranks."""
    transport = installed_transport()
    if transport is None:
        raise LayoutError(
            "a collective ran with no transport installed",
            "an enclosing `use_transport(...)` or `simulate(...)`",
            "wrap the call: `with use_transport(ProcessTransport.from_mesh(mesh)): ...`",
        )
    if size and transport.size(axis) != size:
        raise LayoutError(
            f"mesh axis {axis!r} of size {size}, whose group has {transport.size(axis)} ranks",
            "a mesh with the sizes of the transport's groups",
            "make both from the same sizes",
        )
    return transport


@contextmanager
def use_transport(transport: Transport) -> Iterator[Transport]:
    """Install a transport for the whole process."""
    before = _Installed.transport
    _Installed.transport = transport
    try:
        yield transport
    finally:
        _Installed.transport = before


@contextmanager
def use_transport_on_this_thread(transport: Transport) -> Iterator[Transport]:
    """Install a transport for the calling thread alone: one simulated rank."""
    before = getattr(_simulated, "transport", None)
    _simulated.transport = transport
    try:
        yield transport
    finally:
        _simulated.transport = before


class ProcessTransport:
    """Collectives over torch.distributed groups, one per axis name (gloo or NCCL).

    gloo carries few collectives of CUDA tensors: there they go through the host's memory.
    """

    def __init__(self, groups: Mapping[str, dist.ProcessGroup]) -> None:
        self._groups = dict(groups)

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh) -> Self:
        """Groups of every axis of a DeviceMesh and of all its flattened axes ("dp*tp").

        Every process of the default group must call this, with the same mesh: it creates groups.
        """
        names = mesh.mesh_dim_names
        if names is None:
            raise LayoutError("a DeviceMesh without axis names", "mesh_dim_names given", "name its axes")
        groups = {name: mesh.get_group(name) for name in names}
        return cls(groups | _make_groups(mesh.mesh, names, _subsets(names, 2)))

    @classmethod
    def from_ranks(cls, ranks: Tensor, names: Sequence[str]) -> Self:
        """Groups over an n-d array of global ranks, one name per array dim: a stage's part of the processes.

        Every process of the default group must call this; one that is not in `ranks` gets no groups.
        """
        return cls(_make_groups(ranks, tuple(names), _subsets(tuple(names), 1)))

    def group(self, axis: str) -> dist.ProcessGroup:
        if axis not in self._groups:
            raise LayoutError(f"no process group for axis {axis!r}", f"one of {sorted(self._groups)}")
        return self._groups[axis]

    def size(self, axis: str) -> int:
        return dist.get_world_size(self.group(axis))

    def index(self, axis: str) -> int:
        return dist.get_rank(self.group(axis))

    def _through_host(self, x: Tensor, axis: str) -> bool:
        return x.is_cuda and dist.get_backend(self.group(axis)) == "gloo"

    def all_reduce(self, x: Tensor, axis: str, op: str) -> Tensor:
        if self._through_host(x, axis):
            return self.all_reduce(x.cpu(), axis, op).to(x.device)
        out = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(out, dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM, self.group(axis))
        return out

    def sum_in_place(self, x: Tensor, axis: str) -> Tensor:
        if self._through_host(x, axis):
            return x.copy_(self.sum_in_place(x.cpu(), axis))
        dist.all_reduce(x, dist.ReduceOp.SUM, self.group(axis))
        return x

    def gather_into(self, out: Tensor, x: Tensor, axis: str) -> Tensor:
        if self._through_host(x, axis):
            return out.copy_(self.gather_into(torch.empty_like(out, device="cpu"), x.cpu(), axis))
        _all_gather(out.view(-1), x.contiguous().view(-1), group=self.group(axis))
        return out

    def scatter_into(self, out: Tensor, pieces: Tensor, axis: str) -> Tensor:
        if self._through_host(out, axis):
            return out.copy_(self.scatter_into(torch.empty_like(out, device="cpu"), pieces.cpu(), axis))
        _reduce_scatter(out.view(-1), pieces.contiguous().view(-1), group=self.group(axis))
        return out

    def all_gather(self, x: Tensor, axis: str) -> Tensor:
        if self._through_host(x, axis):
            return self.all_gather(x.cpu(), axis).to(x.device)
        group = self.group(axis)
        out = x.new_empty((dist.get_world_size(group), *x.shape))
        # Flat views: backends disagree on the shapes they accept, and empty pieces are allowed.
        _all_gather(out.view(-1), x.contiguous().view(-1), group=group)
        return out

    def reduce_scatter(self, pieces: Tensor, axis: str) -> Tensor:
        if self._through_host(pieces, axis):
            return self.reduce_scatter(pieces.cpu(), axis).to(pieces.device)
        out = pieces.new_empty(pieces.shape[1:])
        _reduce_scatter(out.view(-1), pieces.contiguous().view(-1), group=self.group(axis))
        return out

    def all_to_all(self, pieces: Tensor, axis: str) -> Tensor:
        if self._through_host(pieces, axis):
            return self.all_to_all(pieces.cpu(), axis).to(pieces.device)
        out = torch.empty_like(pieces, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, pieces.contiguous(), group=self.group(axis))
        return out

    def exchange(self, x: Tensor, sent: list[int], received: list[int], axis: str) -> Tensor:
        """Rows in runs: `sent[i]` of them go to rank i; what arrives stands in rank order."""
        if self._through_host(x, axis):
            return self.exchange(x.cpu(), sent, received, axis).to(x.device)
        out = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=self.group(axis))
        return out


def _subsets(names: tuple[str, ...], smallest: int) -> list[tuple[str, ...]]:
    return [subset for count in range(smallest, len(names) + 1) for subset in combinations(names, count)]


def _make_groups(ranks: Tensor, names: tuple[str, ...], subsets: list[tuple[str, ...]]) -> dict[str, dist.ProcessGroup]:
    """This process's group along each subset of axes, by joined name."""
    made = {}
    for subset in subsets:
        group = _group_along(ranks, [names.index(name) for name in subset])
        if group is not None:
            made[FLAT.join(subset)] = group
    return made


def _group_along(ranks: Tensor, which: list[int]) -> dist.ProcessGroup | None:
    """The group of this process among those that vary along the axes `which`, outermost first."""
    others = [axis for axis in range(ranks.ndim) if axis not in which]
    rows = ranks.permute(*others, *which).reshape(-1, prod(ranks.shape[axis] for axis in which)).tolist()
    mine = None
    for row in rows:
        group = dist.new_group(row)
        if dist.get_rank() in row:
            mine = group
    return mine
