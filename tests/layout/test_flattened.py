"""One collective over several axes: every such step, even and uneven, value and gradient, is what it should be."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch
from layout_pieces import assert_holds, pieces
from layout_ranks import Sizes, rank_of_mesh
from torch import Tensor

from meshwright.cluster import Mesh, load_cluster, logical_mesh
from meshwright.layout import Collective, Layout, Step, all_layouts, conversion
from meshwright.layout.convert import run_op
from meshwright.layout.flattened import Place
from meshwright.layout.moves import moves
from meshwright.layout.record import record
from meshwright.layout.stepprice import price_step
from meshwright.layout.threads import simulate

if TYPE_CHECKING:
    from processes import GlooPool


def flattened_steps(n_dims: int, n_axes: int, count: int) -> list[Step]:
    steps = [step for layout in all_layouts(n_dims, n_axes) for step in moves(layout, n_dims) if len(step.axes) > 1]
    return steps if count >= len(steps) else random.Random(0).sample(steps, count)


def place_of(step: Step, mesh: Mesh, shape: tuple[int, ...], rank: int) -> Place:
    """As `convert` makes it: coordinates only where some piece is uneven."""
    even = all(layout.is_even(shape, mesh.sizes) for layout in (step.source, step.target))
    return Place(mesh, shape, None if even else mesh.coordinates(rank))


QUICK: list[tuple[Sizes, tuple[int, ...], int]] = [
    ({"a": 2, "b": 3}, (7, 5, 4), 120),
    ({"a": 3, "b": 1}, (4, 2), 100),
    ({"a": 2, "b": 2, "c": 2}, (8, 16), 60),
]
CASES: list[tuple[Sizes, tuple[int, ...], int]] = [
    *QUICK,
    ({"a": 2, "b": 3}, (12, 6, 18), 120),
    ({"a": 2, "b": 2}, (5, 3, 1), 120),
    ({"a": 2, "b": 2, "c": 2}, (9, 5), 60),
]


def run_steps(sizes: Sizes, shape: tuple[int, ...], count: int) -> None:
    mesh, steps = logical_mesh(sizes), flattened_steps(len(shape), len(sizes), count)
    torch.manual_seed(0)
    full, gradient = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    values = [pieces(full, step.source, mesh, "P") for step in steps]
    gradients = [pieces(gradient, step.target, mesh, "R") for step in steps]

    def rank_run(rank: int) -> list[tuple[Tensor, Tensor, list[Collective], list[Collective]]]:
        out = []
        for i, step in enumerate(steps):
            place = place_of(step, mesh, shape, rank)
            with record() as forward:
                y = run_op(step.forward_op, values[i][rank], step.source, step.target, place)
            with record() as backward:
                g = run_op(step.backward_op, gradients[i][rank], step.target, step.source, place)
            out.append((y, g, forward, backward))
        return out

    ranks = simulate(sizes, rank_run)
    for i, step in enumerate(steps):
        assert_holds([rank[i][0] for rank in ranks], full, step.target, mesh, "P")
        assert_holds([rank[i][1] for rank in ranks], gradient, step.source, mesh, "R")
        price = price_step(step, shape, 8, mesh, True)
        assert (tuple(ranks[0][i][2]), tuple(ranks[0][i][3])) == (price.forward, price.backward), step
        assert len(price.forward) <= 1 >= len(price.backward)


@pytest.mark.parametrize(("sizes", "shape", "count"), QUICK, ids=str)
def test_every_flattened_step_is_right_and_runs_what_is_priced(
    sizes: Sizes, shape: tuple[int, ...], count: int
) -> None:
    run_steps(sizes, shape, count)


@pytest.mark.full
@pytest.mark.parametrize(("sizes", "shape", "count"), CASES, ids=str)
def test_all_flattened_steps(sizes: Sizes, shape: tuple[int, ...], count: int) -> None:
    run_steps(sizes, shape, 1 << 30)


def on_processes(rank: int, sizes: Sizes, shape: tuple[int, ...], count: int) -> int:
    steps = flattened_steps(len(shape), len(sizes), count)
    with rank_of_mesh(rank, sizes, shape) as here:
        for step in steps if here else ():
            place = place_of(step, here.mesh, shape, rank)
            x = here.addend(here.full, step.source, "P")
            here.assert_holds(run_op(step.forward_op, x, step.source, step.target, place), here.full, step.target, "P")
            g = here.addend(here.gradient, step.target, "R")
            g = run_op(step.backward_op, g, step.target, step.source, place)
            here.assert_holds(g, here.gradient, step.source, "R")
    return len(steps)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [({"a": 2, "b": 3}, (7, 5, 4)), pytest.param({"a": 2, "b": 2}, (4, 8, 6), marks=pytest.mark.full)],
    ids=str,
)
def test_flattened_steps_on_processes(gloo: GlooPool, sizes: Sizes, shape: tuple[int, ...]) -> None:
    assert gloo.run(on_processes, sizes, shape, 120)[0] == len(flattened_steps(3, 2, 120))


ONE_COLLECTIVE = [
    ("[S(0), S(1)]", "[I, I]", "all_gather", None),
    ("[S(0), S(1)]", "[I, R]", "all_gather", "reduce_scatter"),
    ("[S(0), S(0)]", "[R, I]", "all_gather", "reduce_scatter"),
    ("[P, P]", "[R, I]", "all_reduce", "all_reduce"),
    ("[P, P]", "[S(1), S(0)]", "reduce_scatter", "all_gather"),
    ("[S(0), S(1)]", "[S(2), S(2)]", "all_to_all", "all_to_all"),
    ("[S(2), S(2)]", "[S(1), S(0)]", "all_to_all", "all_to_all"),
]


@pytest.mark.parametrize("shape", [(16, 8, 12), (15, 7, 13)], ids=["even", "uneven"])
@pytest.mark.parametrize(("source", "target", "forward", "backward"), ONE_COLLECTIVE)
def test_one_collective_is_found_where_one_suffices(
    shape: tuple[int, ...], source: str, target: str, forward: str, backward: str | None
) -> None:
    # So small a tensor costs hardly more than starting a collective: whatever can be done in one is. On gloo, whose
    # reduce-scatter costs an all-reduce, that and a slice would do as well.
    mesh = load_cluster("dgx-h100").mesh((2, 2), ("dp", "tp"))
    path = conversion(Layout.parse(source), Layout.parse(target), shape, 2, mesh)
    assert [(c.kind, c.axis) for c in path.forward] == [(forward, "dp*tp")], path
    assert len(path.backward) == (backward is not None), path
