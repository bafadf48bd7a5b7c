from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster import logical_mesh
from meshwright.errors import LayoutError
from meshwright.layout import Layout, all_layouts
from meshwright.layout.courier import BackgroundWaiter, Task
from meshwright.layout.crossmesh import KINDS, Box, Move, Side, make_route, route

if TYPE_CHECKING:
    from processes import GlooPool


def side(sizes: tuple[int, ...], first: int, layout: Layout) -> Side:
    mesh = logical_mesh({f"a{i}": size for i, size in enumerate(sizes)})
    return Side(replace(mesh, ranks=tuple(range(first, first + prod(sizes)))), layout)


def layouts(n_dims: int, n_axes: int) -> list[Layout]:
    return [layout for layout in all_layouts(n_dims, n_axes) if not any(state.kind in "PR" for state in layout)]


def covered(moves: list[Move], box: Box) -> bool:
    """Whether the moves fill the box, each element once."""
    points = [point for move in moves for point in product(*(range(a, b) for a, b in move.box))]
    return sorted(points) == sorted(product(*(range(a, b) for a, b in box)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], Side, Side]:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=2)))
    ends = []
    first = 0
    for _ in range(2):
        sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
        ends.append(side(sizes, first, draw(st.sampled_from(layouts(len(shape), len(sizes))))))
        first = draw(st.sampled_from([0, prod(sizes)]))  # the second mesh apart, or on the same ranks
    return shape, ends[0], ends[1]


@given(problems(), st.sampled_from(KINDS))
@settings(deadline=None)
def test_every_rank_gets_its_piece(problem: tuple[tuple[int, ...], Side, Side], kind: str) -> None:
    shape, source, target = problem
    whole = np.arange(prod(shape)).reshape(shape)
    found = make_route(kind, shape, source, target)
    first, *rest = found.phases
    have = {rank: np.full(shape, -1) for rank in found.targets}
    for move in first:
        place = tuple(slice(a, b) for a, b in move.box)
        outer = found.sources[move.source]
        assert all(c <= a and b <= d for (a, b), (c, d) in zip(move.box, outer, strict=True)), "sent what it has not"
        have[move.target][place] = whole[place]
    for phase in rest:
        before = {rank: array.copy() for rank, array in have.items()}
        for move in phase:
            place = tuple(slice(a, b) for a, b in move.box)
            have[move.target][place] = before[move.source][place]
    for rank, box in found.targets.items():
        place = tuple(slice(a, b) for a, b in box)
        assert (have[rank][place] == whole[place]).all()
        assert covered([m for phase in found.phases for m in phase if m.target == rank], box)


def test_replicas_that_share_send_every_byte_once() -> None:
    """From one rank to two that want all of it: 2 tensors directly, 1 when they exchange halves."""
    source, target = side((1,), 0, Layout.parse("[I]")), side((2,), 1, Layout.parse("[I]"))
    first = {kind: make_route(kind, (8, 4), source, target).phases[0] for kind in KINDS}
    sent = {kind: sum(move.elements for move in phase if move.source != move.target) for kind, phase in first.items()}
    assert sent == {"direct": 64, "gather": 32, "broadcast": 32}


def test_replicas_share_the_sending() -> None:
    found = make_route("direct", (8,), side((2,), 0, Layout.parse("[I]")), side((2,), 2, Layout.parse("[I]")))
    assert sorted(move.source for move in found.phases[0]) == [0, 1]


def test_the_cheapest_way_is_taken() -> None:
    source, target = side((2,), 0, Layout.parse("[S(0)]")), side((4,), 2, Layout.parse("[I]"))

    def slow_between(a: int, b: int) -> tuple[float, float]:
        return (1e-5, 1e9) if (a < 2) == (b < 2) else (1e-5, 1e8)

    assert route((1024, 1024), source, target, 4, slow_between).kind == "gather"
    assert route((2, 2), source, target, 4, lambda *_: (1e-3, 1e12)).kind == "direct"
    costs = {kind: make_route(kind, (1024, 1024), source, target).seconds(4, slow_between) for kind in KINDS}
    assert costs["gather"] < costs["broadcast"] < costs["direct"]


def test_partial_sums_are_not_handed_over() -> None:
    with pytest.raises(LayoutError, match="no partial sums"):
        make_route("direct", (4,), side((2,), 0, Layout.parse("[P]")), side((1,), 2, Layout.parse("[I]")))
    with pytest.raises(LayoutError, match="route 'ring'"):
        make_route("ring", (4,), side((1,), 0, Layout.parse("[I]")), side((1,), 1, Layout.parse("[I]")))


def run_over(rank: int, chain: list[tuple[tuple[int, ...], int]], shape: tuple[int, ...]) -> int:
    """From mesh to mesh along the chain, in every layout and by every kind, waited for at once and beside other work;
    returns how many were compared."""
    from meshwright.layout.crossrun import Channel, Handover

    channel = Channel(1, threaded=True)
    whole = torch.arange(prod(shape), dtype=torch.float32).reshape(shape)
    compared = 0
    for (sizes, first), (more, second) in pairwise(chain):
        every = product(layouts(len(shape), len(sizes)), layouts(len(shape), len(more)), KINDS)
        for before, after, kind in every:
            found = make_route(kind, shape, side(sizes, first, before), side(more, second, after))
            own = found.sources.get(rank)
            local = None if own is None else whole[tuple(slice(a, b) for a, b in own)].clone()
            got = Handover(found, local, torch.float32, torch.device("cpu"), Channel()).wait()
            other = Handover(found, local, torch.float32, torch.device("cpu"), channel).wait()
            if rank in found.targets:
                assert got is not None
                assert other is not None
                assert torch.equal(got, whole[tuple(slice(a, b) for a, b in found.targets[rank])])
                assert torch.equal(got, other)
                compared += 1
    return compared


@pytest.mark.parametrize(
    "chain",
    [
        [((2,), 0), ((1,), 2)],
        [((1,), 0), ((2,), 1), ((1,), 3)],
        [((2, 2), 0), ((2,), 4)],
        [((3,), 0), ((2,), 2)],
    ],
    ids=["2+1", "1+2+1", "2x2+2", "3 and 2 with a rank in both"],
)
def test_on_processes(gloo: GlooPool, chain: list[tuple[tuple[int, ...], int]]) -> None:
    assert sum(gloo.run(run_over, chain, (5, 4))) > 0


def run_unwaited(rank: int, kind: str) -> int:
    """Rank 1 passes on what rank 2 waits for, and itself waits only when rank 2 has it; rank 0's sends leave alone."""
    from meshwright.layout.crossrun import Channel, Handover

    whole = torch.arange(12.0).reshape(4, 3)
    found = make_route(kind, (4, 3), side((1,), 0, Layout.parse("[I]")), side((2,), 1, Layout.parse("[I]")))
    channel = Channel(2, threaded=True)
    several = [
        Handover(found, whole + n if rank == 0 else None, torch.float32, torch.device("cpu"), channel) for n in range(3)
    ]
    for turn in (2, 1):
        if rank == turn:
            assert all(torch.equal(one.wait(), whole + n) for n, one in enumerate(several))
        dist.barrier()
    if rank == 0:
        for one in several:
            one.task.wait()
            assert one.done()
            assert not one.bytes
    return len(found.phases)


@pytest.mark.parametrize("kind", ["gather", "broadcast"])
def test_a_second_phase_does_not_wait_for_who_passes_on(gloo: GlooPool, kind: str) -> None:
    assert set(gloo.run(run_unwaited, kind)) == {2}


def test_an_error_of_a_task_is_raised_where_it_is_waited_for() -> None:
    def fails() -> None:
        raise ValueError("gone")

    courier, task = BackgroundWaiter(), Task(fails)
    courier.take(task)
    for _ in range(2):
        with pytest.raises(ValueError, match="gone"):
            task.wait()
