"""All edges priced at once are the prices of the steps, one by one."""

from __future__ import annotations

import pytest

from meshwright.cluster import Mesh, load_cluster, logical_mesh
from meshwright.layout import I, Layout, S, all_layouts
from meshwright.layout.graph import Edges, is_small
from meshwright.layout.moves import moves
from meshwright.layout.path import conversion
from meshwright.layout.stepprice import price_step
from meshwright.layout.table import conversion_matrix

DGX = load_cluster("dgx-h100:2")
MESHES = {
    "two axes": DGX.mesh((2, 8)),
    "an axis of one": DGX.mesh((8, 1)),
    "gloo": logical_mesh({"a": 2, "b": 3}),
    "one axis": DGX.mesh((8,)),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("shape", [(32, 64, 16), (7, 50257), (1,), ()], ids=str)
@pytest.mark.parametrize("mesh", MESHES.values(), ids=list(MESHES))
def test_edges_are_priced_as_steps_are(mesh: Mesh, shape: tuple[int, ...], grad: bool) -> None:
    edges, layouts = Edges(shape, 2, mesh, grad), all_layouts(len(shape), len(mesh.axes))
    for number, layout in enumerate(layouts):
        out = list(edges.out_of(number))
        assert [step for _, _, step in out] == list(moves(layout, len(shape)))
        assert [layouts[target] for _, target, _ in out] == [step.target for _, _, step in out]
        prices = [price_step(step, shape, 2, mesh, grad).total_s for _, _, step in out]
        assert [seconds for seconds, _, _ in out] == pytest.approx(prices, rel=1e-12, abs=0)


def test_a_large_graph_is_searched_without_being_built() -> None:
    assert not is_small(4, 4)
    mesh = logical_mesh({"a": 2, "b": 2, "c": 2, "d": 2})
    whole, sharded = Layout.of(I, I, I, I), Layout.of(S(0), S(0), S(1), S(2))
    assert conversion(whole, whole, (16, 16, 16, 16), 2, mesh).steps == ()
    gather = conversion(sharded, whole, (16, 16, 16, 16), 2, mesh)
    assert {c.kind for c in gather.forward} == {"all_gather"}
    step = next(step for step in moves(sharded, 4) if step.target == whole)
    assert gather.total_s <= price_step(step, (16, 16, 16, 16), 2, mesh, True).total_s


@pytest.mark.parametrize("shape", [(32, 64), (7, 5)], ids=str)
def test_the_table_of_all_pairs_holds_the_shortest_paths(shape: tuple[int, ...]) -> None:
    mesh, layouts = MESHES["gloo"], all_layouts(2, 2)
    found = conversion_matrix(tuple(layouts), tuple(layouts), shape, 2, mesh, True)
    for i, source in enumerate(layouts):
        paths = [conversion(source, target, shape, 2, mesh).total_s for target in layouts]
        assert found[i].tolist() == pytest.approx(paths, rel=1e-12, abs=0)
