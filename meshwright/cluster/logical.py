"""Meshes that are given by axis names and sizes alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from meshwright.caches import CACHES
from meshwright.cluster.bind import check_shape
from meshwright.cluster.mesh import Mesh
from meshwright.cluster.presets import preset


def logical_mesh(sizes: Mapping[str, int]) -> Mesh:
    """A mesh given by axis names and sizes alone, on the `local` preset: for tests and for pure layout work."""
    check_shape(tuple(sizes.values()))  # here, since a cache takes 2.0 for 2
    return _logical_mesh(tuple(sizes.items()))


@CACHES.memoized()
def _logical_mesh(sizes: tuple[tuple[str, int], ...]) -> Mesh:
    shape = tuple(size for _, size in sizes)
    return preset("local", max(1, prod(shape))).mesh(shape, tuple(name for name, _ in sizes))
