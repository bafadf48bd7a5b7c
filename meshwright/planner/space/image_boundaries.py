"""Layouts in which an image [samples, channels, height, ...] may cross from one segment to the next.

Cells that read the results of several others (AmoebaNet) have elimination tables too large for memory on several axes,
if every layout may cross. A ShardingModel takes the largest set of layouts whose tables fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.layout import Layout

ALL, NO_WIDTH, NO_HEIGHT = range(3)
"""Every layout; samples, and height over one axis at most (width and depth would do the same); samples alone."""

IMAGE_DIMS = 3
"""Values of more dims than this are images."""

_CHANNELS, _HEIGHT = 1, 2


def image_cut_choices(program: Program, mesh: Mesh) -> Sequence[int]:
    """Sets of layouts to try, the largest first."""
    several = sum(size > 1 for size in mesh.sizes) > 1
    values = (value for graph in program.graphs for value in graph.inputs)
    has_pictures = several and any(len(value.type.shape) > IMAGE_DIMS for value in values)
    return (ALL, NO_WIDTH, NO_HEIGHT) if has_pictures else (ALL,)


def boundary_subset(layouts: tuple[Layout, ...], image_cuts: int) -> tuple[Layout, ...]:
    """The layouts of an image that a set has."""

    def is_left(layout: Layout) -> bool:
        dims = [state.dim for state in layout if state.dim is not None]
        if image_cuts == NO_HEIGHT or _HEIGHT not in dims:
            return max(dims, default=0) < _HEIGHT
        return max(dims) == _HEIGHT and dims.count(_HEIGHT) == 1 and _CHANNELS not in dims

    return layouts if image_cuts == ALL else tuple(filter(is_left, layouts)) or layouts
