"""Oracles: what a rank must hold of a full tensor, and what the ranks' pieces amount to."""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.cluster import Mesh
from meshwright.layout import Layout


def cut(full: Tensor, layout: Layout, mesh: Mesh, coordinates: tuple[int, ...]) -> Tensor:
    """The region of `full` that a rank sees: `torch.chunk` per sharding axis, outermost first."""
    x = full
    for state, size, at in zip(layout, mesh.sizes, coordinates, strict=True):
        if state.dim is not None:
            chunks = torch.chunk(x, size, state.dim)
            x = chunks[at] if at < len(chunks) else x.narrow(state.dim, 0, 0)
    return x.clone()


def pieces(full: Tensor, layout: Layout, mesh: Mesh, partial_kinds: str) -> list[Tensor]:
    """All ranks' pieces. On axes whose state is in `partial_kinds` the full value is a sum of random addends."""
    n_ranks = mesh.world_size
    addends = [full / 1 for _ in range(n_ranks)]
    for axis, state in enumerate(layout):
        if state.kind in partial_kinds:
            addends = _split_along(addends, axis, mesh)
    return [cut(addends[r], layout, mesh, mesh.coordinates(r)) for r in range(n_ranks)]


def _split_along(addends: list[Tensor], axis: int, mesh: Mesh) -> list[Tensor]:
    split = list(addends)
    for group in groups(mesh, axis):
        noise = [torch.randn_like(addends[0]) for _ in group[1:]]
        for rank, addend in zip(group[1:], noise, strict=True):
            split[rank] = addend
        split[group[0]] = addends[group[0]] - sum(noise) if noise else addends[group[0]]
    return split


def groups(mesh: Mesh, axis: int) -> list[list[int]]:
    """The groups of ranks that differ along one axis only."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(mesh.world_size):
        at = mesh.coordinates(rank)
        found.setdefault(at[:axis] + at[axis + 1 :], []).append(rank)
    return list(found.values())


def summed(held: list[Tensor], layout: Layout, mesh: Mesh, partial_kinds: str) -> list[Tensor]:
    """The ranks' pieces with the addends of partial axes summed: comparable to `cut`."""
    out = list(held)
    for axis, state in enumerate(layout):
        if state.kind in partial_kinds:
            for group in groups(mesh, axis):
                total = torch.stack([out[rank] for rank in group]).sum(0)
                for rank in group:
                    out[rank] = total
    return out


def assert_holds(held: list[Tensor], full: Tensor, layout: Layout, mesh: Mesh, partial_kinds: str) -> None:
    """The ranks' pieces are `full` in `layout`."""
    for rank, x in enumerate(summed(held, layout, mesh, partial_kinds)):
        assert_near(x, cut(full, layout, mesh, mesh.coordinates(rank)), f"rank {rank} of {layout}")


def assert_near(x: Tensor, expected: Tensor, what: str = "") -> None:
    """As `torch.testing.assert_close`, which takes most of the time of a large matrix where all is well."""
    if x.shape != expected.shape or x.dtype != expected.dtype or not torch.allclose(x, expected, 1e-7, 1e-7):
        torch.testing.assert_close(x, expected, rtol=1e-7, atol=1e-7, msg=lambda text: f"{what}: {text}")
        raise AssertionError(f"{what}: {x} is not {expected}")
