"""Converting real tensors: values, gradients and collectives are what the path says, for every pair of layouts."""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING

import pytest
import torch
from layout_pieces import assert_holds, pieces
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from meshwright.cluster import Mesh, logical_mesh
from meshwright.errors import LayoutError
from meshwright.layout import Collective, Layout, all_layouts, conversion
from meshwright.layout.convert import convert, convert_gradient
from meshwright.layout.record import record
from meshwright.layout.threads import simulate

if TYPE_CHECKING:
    from processes import GlooPool

CASES = [
    ({"a": 2}, (4, 6)),
    ({"a": 3}, (7, 3, 2)),
    pytest.param({"a": 2, "b": 3}, (12, 6), marks=pytest.mark.full),
    ({"a": 2, "b": 2}, (5, 3)),
    ({"a": 2, "b": 1}, (4, 4)),
    ({"a": 3}, (1, 2)),
]


def convert_all_pairs(sizes: dict[str, int], shape: tuple[int, ...], sample: int | None = None) -> None:
    pairs = list(product(all_layouts(len(shape), len(sizes)), repeat=2))
    convert_pairs(sizes, shape, random.Random(0).sample(pairs, sample) if sample else pairs)


def convert_pairs(sizes: dict[str, int], shape: tuple[int, ...], pairs: list[tuple[Layout, Layout]]) -> None:
    mesh = logical_mesh(sizes)
    paths = [conversion(source, target, shape, 8, mesh) for source, target in pairs]
    torch.manual_seed(0)
    full, gradient = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    values = [pieces(full, source, mesh, "P") for source, _ in pairs]
    gradients = [pieces(gradient, target, mesh, "R") for _, target in pairs]

    def rank_run(rank: int) -> list[tuple[Tensor, Tensor, Tensor, list[Collective], list[Collective]]]:
        out = []
        for i, (source, target) in enumerate(pairs):
            x = values[i][rank].requires_grad_()
            with record() as forward:
                y = convert(x, source, target, mesh, shape=shape)
            with record() as backward:
                (g,) = torch.autograd.grad(y, x, gradients[i][rank]) if y is not x else (gradients[i][rank],)
            alone = convert_gradient(gradients[i][rank], source, target, mesh, shape=shape)
            out.append((y.detach(), g, alone, forward, backward))
        return out

    ranks = simulate(sizes, rank_run)
    for i, (source, target) in enumerate(pairs):
        assert_holds([rank[i][0] for rank in ranks], full, target, mesh, "P")
        assert_holds([rank[i][1] for rank in ranks], gradient, source, mesh, "R")
        assert_holds([rank[i][2] for rank in ranks], gradient, source, mesh, "R")
        assert tuple(ranks[0][i][3]) == paths[i].forward, paths[i]
        assert tuple(ranks[0][i][4]) == paths[i].backward, paths[i]


@pytest.mark.parametrize(("sizes", "shape"), CASES)
def test_every_pair_converts_value_and_gradient_and_runs_what_is_priced(
    sizes: dict[str, int], shape: tuple[int, ...]
) -> None:
    convert_all_pairs(sizes, shape)


@pytest.mark.parametrize(("shape", "sample"), [((7, 5), 40), pytest.param((8, 16), 60, marks=pytest.mark.full)])
def test_some_pairs_on_three_axes(shape: tuple[int, ...], sample: int) -> None:
    convert_all_pairs({"a": 2, "b": 2, "c": 2}, shape, sample)


def convert_a_share(rank: int, shape: tuple[int, ...], shares: int) -> int:
    """Every `shares`-th pair, in batches: their tensors need not all be there at once."""
    pairs = list(product(all_layouts(len(shape), 3), repeat=2))[rank::shares]
    for begin in range(0, len(pairs), 500):
        convert_pairs({"a": 2, "b": 2, "c": 2}, shape, pairs[begin : begin + 500])
    return len(pairs)


@pytest.mark.full
@pytest.mark.parametrize("shape", [(8, 4), (3, 5)])
def test_every_pair_on_three_axes(gloo: GlooPool, shape: tuple[int, ...]) -> None:
    assert sum(gloo.run(convert_a_share, shape, 6, timeout_s=3600)) == 125**2


def test_without_gradient_replicated_and_invariant_cost_nothing_between_them() -> None:
    mesh = logical_mesh({"a": 2, "b": 2})
    path = conversion(Layout.parse("[I, R]"), Layout.parse("[R, I]"), (4, 4), 4, mesh, False)
    assert (path.forward, path.backward, path.total_s) == ((), (), 0.0)
    x = torch.ones(4, 4)
    for y in simulate({"a": 2, "b": 2}, lambda _: convert(x, path.source, path.target, mesh, grad=False)):
        assert torch.equal(y, x)


def traced(mesh: Mesh, source: str, target: str, shape: tuple[int, ...]) -> list[str]:
    """Names of the meshwright ops in a trace of forward and gradient, on fakes, with no transport at all."""

    def forward_and_gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = convert(x, Layout.parse(source), Layout.parse(target), mesh)
        return torch.autograd.grad(y, x, torch.ones_like(y))[0]

    graph = make_fx(forward_and_gradient, tracing_mode="fake")(torch.empty(shape)).graph
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    return [name.removeprefix("meshwright.").removesuffix(".default") for name in names if "meshwright" in name]


def test_a_trace_shows_the_raw_ops_and_needs_no_process_group() -> None:
    mesh = logical_mesh({"dp": 2, "tp": 2})
    assert traced(mesh, "[I, S(0)]", "[I, R]", (4, 4)) == ["all_gather", "reduce_scatter"]
    assert traced(mesh, "[I, I]", "[R, I]", (4, 4)) == ["all_reduce"]
    assert traced(mesh, "[I, P]", "[I, I]", (4, 4)) == ["all_reduce"]
    assert traced(mesh, "[S(0), S(1)]", "[S(0), S(0)]", (4, 4)) == ["all_to_all", "all_to_all"]
    assert traced(mesh, "[S(0), S(1)]", "[R, R]", (4, 4)) == ["all_gather", "reduce_scatter"]


def test_an_uneven_trace_without_ranks_is_the_first_ranks() -> None:
    source, target = Layout.parse("[S(0)]"), Layout.parse("[S(1)]")

    def turned(x: Tensor) -> Tensor:
        return convert(x, source, target, {"x": 2}, shape=(4, 5))

    traced = make_fx(turned, tracing_mode="fake")(torch.zeros(2, 5))
    assert next(iter(reversed(traced.graph.nodes))).args[0].meta["val"].shape == (4, 3)


@pytest.mark.parametrize("target", ["[I]", "[R]", "[P]", "[S(1)]"])
def test_uneven_pieces_need_the_global_shape(target: str) -> None:
    rows, mesh = torch.arange(10.0).reshape(5, 2).chunk(3), {"a": 3}

    def with_shape(shape: tuple[int, ...] | None) -> list[Tensor]:
        to = Layout.parse(target)
        return simulate(mesh, lambda rank: convert(rows[rank], Layout.parse("[S(0)]"), to, mesh, shape=shape))

    with pytest.raises(LayoutError, match=r"lengths from \[1, 2\] to \[2, 2\](.|\n)*pass `shape=`"):
        with_shape(None)
    assert_holds(with_shape((5, 2)), torch.cat(rows), Layout.parse(target), logical_mesh(mesh), "P")


def test_even_pieces_need_no_shape_and_comparing_them_is_not_a_step() -> None:
    rows, mesh = torch.arange(12.0).reshape(6, 2).chunk(6), {"a": 2, "b": 3}

    def gathered(rank: int) -> tuple[Tensor, list[Collective]]:
        with record() as log:
            return convert(rows[rank], Layout.parse("[S(0), S(0)]"), Layout.parse("[I, I]"), mesh), log

    for whole, log in simulate(mesh, gathered):
        assert torch.equal(whole, torch.cat(rows))
        assert [step.kind for step in log] == ["all_gather"]


@pytest.mark.parametrize("source", ["[P]", "[I]", "[R]", "[S(0)]"])
@pytest.mark.parametrize("target", ["[P]", "[I]", "[S(0)]", "[S(1)]"])
def test_a_mesh_of_another_size_than_the_group_is_refused(source: str, target: str) -> None:
    if source == target:
        return
    for shape in (None, (6, 6)):
        piece = torch.ones((3, 6) if shape and source == "[S(0)]" else (6, 6))
        with pytest.raises(LayoutError, match="mesh axis 'a' of size 2, whose group has 3 ranks"):
            simulate(
                {"a": 3},
                lambda _, x=piece, shape=shape: convert(  # type: ignore[misc]
                    x, Layout.parse(source), Layout.parse(target), {"a": 2}, shape=shape
                ),
            )


def test_what_is_no_tensor_layout_or_mesh_is_refused() -> None:
    x, source, target = torch.ones(2, 2), Layout.parse("[S(0)]"), Layout.parse("[I]")
    with pytest.raises(LayoutError, match="a tensor"):
        convert([1, 2], source, target, {"a": 2})  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match=r"Layout\.parse"):
        convert(x, "[S(0)]", target, {"a": 2})  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="axis names with sizes"):
        convert(x, source, target, 2)  # type: ignore[arg-type]


def test_a_piece_of_the_wrong_shape_is_refused() -> None:
    mesh = logical_mesh({"a": 2})
    with pytest.raises(LayoutError, match=r"piece of shape \(3, 4\)"):
        convert(torch.ones(3, 4), Layout.parse("[S(0)]"), Layout.parse("[R]"), mesh, shape=(8, 4))
    with pytest.raises(LayoutError, match="dim 2"):
        convert(torch.ones(3, 4), Layout.parse("[S(2)]"), Layout.parse("[R]"), mesh)
    with pytest.raises(LayoutError, match="one per axis"):
        convert(torch.ones(3, 4), Layout.parse("[R]"), Layout.parse("[R, R]"), mesh)
