"""In which layouts a picture [samples, channels, height, ...] crosses from one segment to the next.

Cells that read the results of several others (AmoebaNet) have, on several axes, tables that no memory holds when every
layout may cross. A ShardingModel takes the most freedom whose tables it can hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.layout import Layout

ALL, NO_WIDTH, NO_HEIGHT = range(3)
"""Every layout; those that cut height over one axis at most, besides samples alone (width and depth would do the same);
those that cut neither."""

IMAGE_DIMS = 3
"""Values of more dims than this are pictures."""

_CHANNELS, _HEIGHT = 1, 2


def freedoms(program: Program, mesh: Mesh) -> Sequence[int]:
    """What may be tried, the most first."""
    several = sum(size > 1 for size in mesh.sizes) > 1
    values = (value for graph in program.graphs for value in graph.inputs)
    has_pictures = several and any(len(value.type.shape) > IMAGE_DIMS for value in values)
    return (ALL, NO_WIDTH, NO_HEIGHT) if has_pictures else (ALL,)


def crossing(layouts: tuple[Layout, ...], freedom: int) -> tuple[Layout, ...]:
    """Of a picture's layouts, those that this leaves."""

    def is_left(layout: Layout) -> bool:
        dims = [state.dim for state in layout if state.dim is not None]
        if freedom == NO_HEIGHT or _HEIGHT not in dims:
            return max(dims, default=0) < _HEIGHT
        return max(dims) == _HEIGHT and dims.count(_HEIGHT) == 1 and _CHANNELS not in dims

    return layouts if freedom == ALL else tuple(filter(is_left, layouts)) or layouts
