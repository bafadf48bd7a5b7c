"""All conversions at once cost what the shortest path of each costs."""

from __future__ import annotations

import pytest

from meshwright.cluster import load_cluster
from meshwright.layout import all_layouts, conversion
from meshwright.layout.table import conversion_matrix


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("shape", [(8, 16, 32), (6, 12)])
def test_the_table_is_what_dijkstra_finds(shape: tuple[int, ...], grad: bool) -> None:
    mesh = load_cluster("dgx-h100:2").mesh((2, 8))
    layouts = tuple(all_layouts(len(shape), 2))
    table = conversion_matrix(layouts, layouts, shape, 4, mesh, grad)
    for row, source in enumerate(layouts):
        for column, target in enumerate(layouts):
            found = conversion(source, target, shape, 4, mesh, grad=grad)
            assert table[row, column] == pytest.approx(found.total_s, rel=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_axis_that_shards_samples_throughout_takes_no_part(axis: int) -> None:
    """No path is shorter for leaving it: the others' seconds are those of the mesh without it."""
    mesh, shape = load_cluster("dgx-h100:2").mesh((2, 2, 4)), (16, 32, 64)
    layouts = [one for one in all_layouts(3, 3) if one[axis].dim == 0 and not any(one[i].dim == 0 for i in range(axis))]
    table = conversion_matrix(tuple(layouts), tuple(layouts), shape, 2, mesh, True)
    for row, source in enumerate(layouts):
        for column, target in list(enumerate(layouts))[row % 5 :: 5]:
            found = conversion(source, target, shape, 2, mesh)
            assert table[row, column] == pytest.approx(found.total_s, rel=1e-12), (source, target)
