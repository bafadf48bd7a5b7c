"""Which part of a tensor a rank holds."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.layout import Layout

Region = tuple[slice, ...]


def region(layout: Layout, shape: Sequence[int], mesh_sizes: Sequence[int], coordinates: Sequence[int]) -> Region:
    """The part of the rank at these coordinates; pieces are cut as `torch.chunk` does."""
    found = []
    for dim, length in enumerate(shape):
        start, end = 0, length
        for axis in layout.sharding(dim):
            width = -(-(end - start) // mesh_sizes[axis])
            start = min(end, start + coordinates[axis] * width)
            end = min(end, start + width)
        found.append(slice(start, end))
    return tuple(found)
