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
