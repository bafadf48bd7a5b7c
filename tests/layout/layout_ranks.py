"""One process of a pool as a rank of a mesh: what it holds of values that all ranks know, and what it must hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from layout_pieces import assert_near, cut
from torch import Tensor

from meshwright.cluster import Mesh, logical_mesh
from meshwright.layout import Layout
from meshwright.layout import collectives as ops
from meshwright.layout.transport import ProcessTransport, use_transport

Sizes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Rank:
    """`full` and `gradient`: a value and its gradient, the same on every rank."""

    mesh: Mesh
    at: tuple[int, ...]
    full: Tensor
    gradient: Tensor

    def addend(self, full: Tensor, layout: Layout, kinds: str) -> Tensor:
        """This rank's piece of `full`; on axes in `kinds`, different addends whose sum over the axis is `full`."""
        for state, size, i in zip(layout, self.mesh.sizes, self.at, strict=True):
            if state.kind in kinds:
                full = full * (2 * (i + 1) / (size * (size + 1)))
        return cut(full, layout, self.mesh, self.at)

    def assert_holds(self, x: Tensor, full: Tensor, layout: Layout, kinds: str) -> None:
        """That `x`, summed over the axes whose state is in `kinds`, is this rank's piece of `full`."""
        for state, axis in zip(layout, self.mesh.axes, strict=True):
            if state.kind in kinds and axis.size > 1:
                x = ops.all_reduce(x, axis.name)
        assert_near(x, cut(full, layout, self.mesh, self.at), str(layout))


@contextmanager
def rank_of_mesh(rank: int, sizes: Sizes, shape: tuple[int, ...]) -> Iterator[Rank | None]:
    """On a mesh of the first processes of the pool; None where it does not reach."""
    mesh, transport = logical_mesh(sizes), _transport(tuple(sizes.items()))
    if rank >= mesh.world_size:
        yield None
        return
    generator = torch.Generator().manual_seed(0)
    full, gradient = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    with use_transport(transport):
        yield Rank(mesh, mesh.coordinates(rank), full, gradient)


@cache
def _transport(sizes: tuple[tuple[str, int], ...]) -> ProcessTransport:
    """Making groups takes longer than most tests: a mesh's are kept as long as the pool. Every process must call."""
    mesh = logical_mesh(dict(sizes))
    return ProcessTransport.from_ranks(torch.arange(mesh.world_size).reshape(mesh.sizes), list(mesh.names))
