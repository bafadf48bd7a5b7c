"""Seconds between all layouts of a tensor at once: single steps priced, then joined by min-plus products.

The same lengths that Dijkstra finds in `path`; a planner asks for most pairs, so all of them together are cheaper.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshwright.cluster.mesh import Mesh
from meshwright.layout.path import layout_numbers, step_seconds
from meshwright.layout.states import Layout


@lru_cache(maxsize=1 << 12)
def conversion_table(shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> npt.NDArray[np.float64]:
    """Forward and backward seconds from each layout (rows) to each (columns), by `layout_numbers`."""
    lengths = step_seconds(shape, itemsize, mesh, grad)
    while True:
        longer = np.stack([(row[:, None] + lengths).min(axis=0) for row in lengths])
        if np.array_equal(longer, lengths):
            return lengths
        lengths = longer


def conversion_matrix(
    made: tuple[Layout, ...], wants: tuple[Layout, ...], shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool
) -> npt.NDArray[np.float64]:
    """Seconds from each of some layouts to each of some others."""
    number = layout_numbers(len(shape), len(mesh.axes))
    rows, columns = [number[layout] for layout in made], [number[layout] for layout in wants]
    return conversion_table(shape, itemsize, mesh, grad)[np.ix_(rows, columns)]
