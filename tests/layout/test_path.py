"""Facts of the priced conversion graph."""

from __future__ import annotations

import random
from itertools import product

import pytest

from meshwright.cluster import Mesh, collective_s, load_cluster, logical_mesh
from meshwright.errors import LayoutError
from meshwright.layout import Layout, all_layouts, conversion
from meshwright.layout.moves import moves
from meshwright.layout.stepprice import price_step

DGX = load_cluster("dgx-h100:2").mesh((2, 8), ("dp", "tp"))
SHAPE = (32, 64, 16)
LARGE = (512, 1024, 256)  # where bytes decide, not latencies
LAYOUTS = all_layouts(3, 2)


def total_s(source: Layout, target: Layout, mesh: Mesh = DGX, grad: bool = True) -> float:
    return conversion(source, target, SHAPE, 2, mesh, grad).total_s


def test_staying_costs_nothing() -> None:
    for layout in LAYOUTS:
        path = conversion(layout, layout, SHAPE, 2, DGX)
        assert (path.total_s, path.steps, path.transient_bytes) == (0.0, (), 0)


@pytest.mark.parametrize("grad", [True, False])
def test_triangle_inequality(grad: bool) -> None:
    for a, b, c in random.Random(0).choices(list(product(LAYOUTS, repeat=3)), k=5000):
        assert total_s(a, c, grad=grad) <= total_s(a, b, grad=grad) + total_s(b, c, grad=grad) + 1e-15


@pytest.mark.parametrize("grad", [True, False])
def test_dijkstra_is_exact_against_bellman_ford(grad: bool) -> None:
    mesh = load_cluster("dgx-h100:2").mesh((2, 4), ("dp", "tp"))
    layouts = all_layouts(2, 2)
    shape = (6, 8)  # uneven on tp: padding is part of the graph
    edges = [
        (layout, step.target, price_step(step, shape, 4, mesh, grad).total_s)
        for layout in layouts
        for step in moves(layout, len(shape))
    ]
    for source in layouts:
        best = dict.fromkeys(layouts, float("inf")) | {source: 0.0}
        for _ in layouts:
            for before, after, length_s in edges:
                best[after] = min(best[after], best[before] + length_s)
        for target in layouts:
            found = conversion(source, target, shape, 4, mesh, grad)
            assert found.total_s == pytest.approx(best[target], rel=1e-12, abs=0)


def greedy_s(source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...]) -> float:
    """One-step look-ahead as in the greedy converters: the cheapest step that brings most axes to their target."""
    total, layout = 0.0, source
    while layout != target:
        options = [
            (sum(a != b for a, b in zip(step.target, target, strict=True)), price.total_s, str(step.target), step)
            for step in moves(layout, len(shape))
            for price in [price_step(step, shape, 2, mesh, True)]
        ]
        wrong, step_s, _, step = min(options, key=lambda option: option[:3])
        if wrong >= sum(a != b for a, b in zip(layout, target, strict=True)):
            return float("inf")  # stuck: greedy finds no way
        total, layout = total + step_s, step.target
    return total


def test_never_worse_than_greedy_and_often_better(capsys: pytest.CaptureFixture[str]) -> None:
    better = compared = 0
    for source, target in product(LAYOUTS, repeat=2):
        if source != target:
            exact, greedy = total_s(source, target), greedy_s(source, target, DGX, SHAPE)
            assert exact <= greedy * (1 + 1e-12)
            compared += 1
            better += exact < greedy * (1 - 1e-9)
    with capsys.disabled():
        print(f"\nexact strictly better than greedy on {better} of {compared} ordered pairs")
    assert better > 0


def test_one_flattened_collective_where_one_suffices() -> None:
    # Between processes of one machine copies cost as much as the wire: there, a tensor that hardly costs either.
    for mesh, shape in ((DGX, LARGE), (logical_mesh({"dp": 2, "tp": 2}), (16, 8, 12))):
        for source, target, kinds in [
            ("[S(0), S(1)]", "[I, I]", [("all_gather",), ()]),
            ("[S(0), S(0)]", "[I, I]", [("all_gather",), ()]),
            ("[P, P]", "[I, I]", [("all_reduce",), ()]),
            ("[I, I]", "[R, R]", [(), ("all_reduce",)]),
            ("[S(0), S(0)]", "[S(1), S(1)]", [("all_to_all",), ("all_to_all",)]),
        ]:
            path = conversion(Layout.parse(source), Layout.parse(target), shape, 2, mesh)
            assert [tuple(c.kind for c in path.forward), tuple(c.kind for c in path.backward)] == kinds, path
            assert {c.axis for c in path.forward + path.backward} == {"dp*tp"}
    zero3 = conversion(Layout.parse("[S(0), S(0)]"), Layout.parse("[R, R]"), LARGE, 2, DGX)
    assert [str(c).split("(")[0] for c in zero3.forward + zero3.backward] == ["all_gather", "reduce_scatter"]


def test_where_the_backend_reduces_as_dearly_as_it_scatters_the_path_says_so() -> None:
    scatter = conversion(Layout.parse("[I, P]"), Layout.parse("[I, S(0)]"), LARGE, 2, DGX)
    assert [c.kind for c in scatter.forward] == ["reduce_scatter"]
    gloo = logical_mesh({"dp": 2, "tp": 2})  # here a scatter costs as much and then has pieces to put in order
    reduce = conversion(Layout.parse("[I, P]"), Layout.parse("[I, S(1)]"), LARGE, 2, gloo)
    assert [c.kind for c in reduce.forward] == ["all_reduce"]


def test_single_axis_gathers_reach_exactly_the_layouts_they_should() -> None:
    start = Layout.parse("[S(0), S(1)]")
    reached = {
        str(step.target) for step in moves(start, len(SHAPE)) if step.forward == "all_gather" and len(step.axes) == 1
    }
    assert reached == {"[I, S(1)]", "[R, S(1)]", "[S(0), I]", "[S(0), R]"}


def test_an_outer_axis_cannot_be_gathered_before_the_inner_one() -> None:
    start = Layout.parse("[S(0), S(0)]")
    assert all(step.axes != (0,) for step in moves(start, len(SHAPE)))
    assert len(conversion(start, Layout.parse("[R, S(0)]"), SHAPE, 2, DGX).steps) > 1


def test_a_step_is_priced_by_its_collectives_and_copies() -> None:
    path = conversion(Layout.parse("[I, S(0)]"), Layout.parse("[I, R]"), SHAPE, 2, DGX)
    n_bytes = 32 * 64 * 16 * 2
    assert path.forward_s == collective_s("all_gather", n_bytes, DGX.axis("tp"))
    assert path.backward_s == collective_s("reduce_scatter", n_bytes, DGX.axis("tp"))
    assert path.transient_bytes == n_bytes
    inner = conversion(Layout.parse("[I, S(1)]"), Layout.parse("[I, R]"), SHAPE, 2, DGX)
    assert inner.forward_s > path.forward_s  # an inner dim is put in order after the wire
    assert inner.transient_bytes == 2 * n_bytes


def test_transient_bytes_hold_what_lies_between_steps() -> None:
    # [S(0), S(0)] -> [R, S(0)] gathers the inner axis before the outer one, then cuts again.
    path = conversion(Layout.parse("[S(0), S(0)]"), Layout.parse("[R, S(0)]"), LARGE, 2, DGX)
    prices = [price_step(step, LARGE, 2, DGX, True) for step in path.steps]
    assert len(prices) >= 2
    forward = [price.forward_bytes + (price.source_bytes if i else 0) for i, price in enumerate(prices)]
    final = len(prices) - 1
    backward = [price.backward_bytes + (price.target_bytes if i < final else 0) for i, price in enumerate(prices)]
    assert path.transient_bytes == max(forward + backward)


def test_price_changes_with_the_mesh() -> None:
    slow = load_cluster("dgx-h100:16").mesh((2, 8), ("dp", "tp"), ranks=range(0, 128, 8))
    source, target = Layout.parse("[I, S(0)]"), Layout.parse("[I, R]")
    assert total_s(source, target, slow) > total_s(source, target)


def test_a_layout_that_does_not_fit_is_refused() -> None:
    with pytest.raises(LayoutError, match="dim 3"):
        conversion(Layout.parse("[S(3), R]"), Layout.parse("[R, R]"), SHAPE, 2, DGX)
    with pytest.raises(LayoutError, match="dim 3"):
        conversion(Layout.parse("[R, R]"), Layout.parse("[S(3), R]"), SHAPE, 2, DGX)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source": "[R, R]"}, r"Layout\.parse"),
        ({"target": "[R, R]"}, r"Layout\.parse"),
        ({"target": Layout.parse("[R]")}, "one per axis"),
        ({"shape": [4, 4]}, r"shape \[4, 4\]"),
        ({"shape": (-4, 4)}, "0 or more"),
        ({"itemsize": 0}, "itemsize 0"),
        ({"mesh": {"a": 2, "b": 2}}, "logical_mesh"),
    ],
)
def test_arguments_that_are_something_else_are_refused(changed: dict[str, object], message: str) -> None:
    right = {"source": Layout.parse("[R, R]"), "target": Layout.parse("[S(0), R]"), "shape": (4, 4), "itemsize": 2}
    with pytest.raises(LayoutError, match=message):
        conversion(**({**right, "mesh": DGX} | changed))  # type: ignore[arg-type]
