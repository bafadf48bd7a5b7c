"""Submeshes for pipeline stages: disjoint, on fast levels, any sizes, any mixture of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest

from meshwright.cluster import Cluster, Group, Link, Member, load_cluster, place, submeshes
from meshwright.errors import ClusterError

FAST, SLOW = load_cluster("dgx-h100").devices[0], load_cluster("local").devices[0]


def host(n: int, device: str = FAST.name) -> Group:
    return Group("host", Link(1e-6, 400e9), (Member(device, n),))


def cluster_of(*members: Member) -> Cluster:
    cluster = Cluster("c", "nccl", (FAST, SLOW), Group("pod", Link(1e-5, 50e9), members))
    cluster.verify()
    return cluster


TWO_OF_TWO = cluster_of(Member(host(2), 2))
TWO_OF_FOUR = cluster_of(Member(host(4), 2))
MIXED = cluster_of(Member(host(8), 2), Member(host(4, SLOW.name), 4))
RACK = Group("rack", Link(5e-6, 100e9), (Member(host(2), 2),))
THREE_LEVELS = cluster_of(Member(RACK, 2))


def test_a_stage_of_two_gets_a_host_though_it_stands_in_the_middle() -> None:
    ranks = place(TWO_OF_TWO, [1, 2, 1])
    assert ranks == [(2,), (0, 1), (3,)]
    assert [hop.level for hop in TWO_OF_TWO.mesh((2,), ranks=ranks[1]).axis("x").hops] == ["host"]


@pytest.mark.parametrize(
    ("cluster", "sizes", "expected"),
    [
        (TWO_OF_FOUR, [4, 4], [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (TWO_OF_FOUR, [2, 4, 2], [(4, 5), (0, 1, 2, 3), (6, 7)]),
        (TWO_OF_FOUR, [2, 1], [(0, 1), (2,)]),
        (TWO_OF_FOUR, [3, 3, 2], [(0, 1, 2), (4, 5, 6), (3, 7)]),  # the last one has nowhere better
        (TWO_OF_FOUR, [6, 2], [(0, 1, 2, 3, 4, 5), (6, 7)]),  # a whole host and half of the other
        (THREE_LEVELS, [2, 4, 2], [(4, 5), (0, 1, 2, 3), (6, 7)]),
        (THREE_LEVELS, [8], [tuple(range(8))]),
        (load_cluster("local:3"), [2, 1], [(0, 1), (2,)]),
    ],
)
def test_stages_are_placed_where_they_cross_least(
    cluster: Cluster, sizes: list[int], expected: list[tuple[int, ...]]
) -> None:
    assert place(cluster, sizes) == expected


def hosts_used(cluster: Cluster, ranks: Sequence[int]) -> int:
    """Level crossings of a stage: hosts it touches beyond the first."""
    of_rank: list[int] = []
    for number, (child, _) in enumerate(cluster.root.children()):
        assert isinstance(child, Group)
        of_rank += [number] * child.device_count
    return len({of_rank[rank] for rank in ranks}) - 1


def all_placements(free: frozenset[int], sizes: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    if not sizes:
        yield []
        return
    for mine in combinations(sorted(free), sizes[0]):
        for rest in all_placements(free - set(mine), sizes[1:]):
            yield [mine, *rest]


@pytest.mark.parametrize("sizes", [[1, 2, 1], [2, 2, 2, 2], [4, 1, 1, 2], [1, 4, 2, 1], [2, 1], [4, 2], [1, 1, 4]])
def test_no_placement_crosses_less_for_sizes_that_divide_each_other(sizes: list[int]) -> None:
    found = place(TWO_OF_FOUR, sizes)
    assert sorted(map(len, found)) == sorted(sizes)
    assert len({rank for ranks in found for rank in ranks}) == sum(sizes)
    best = min(sum(hosts_used(TWO_OF_FOUR, r) for r in each) for each in all_placements(frozenset(range(8)), sizes))
    assert sum(hosts_used(TWO_OF_FOUR, ranks) for ranks in found) == best


def test_types_are_kept_apart_and_can_be_asked_for() -> None:
    kinds = MIXED.device_names()
    for ranks in place(MIXED, [8, 8, 4, 4, 4, 4]):
        assert len({kinds[rank] for rank in ranks}) == 1
    slow, fast = place(MIXED, [4, 8], [SLOW.name, FAST.name])
    assert (slow, fast) == ((16, 17, 18, 19), tuple(range(8)))
    assert place(MIXED, [16, 16]) == [tuple(range(16)), tuple(range(16, 32))]
    whole = place(MIXED, [24, 8])
    assert {kinds[rank] for rank in whole[0]} == {FAST.name, SLOW.name}  # no type has 24
    assert {kinds[rank] for rank in whole[1]} == {SLOW.name}


def test_submeshes_of_a_size_come_in_every_class_and_shape_once() -> None:
    of_four = submeshes(MIXED, 4)
    assert sorted((mesh.device.name, mesh.sizes) for mesh in of_four) == sorted(
        (device.name, shape) for device in (FAST, SLOW) for shape in ((4,), (2, 2))
    )
    assert all(hop.level == "host" for mesh in of_four for axis in mesh for hop in axis.hops)
    assert {mesh.device.name for mesh in submeshes(MIXED, 16, max_axes=1)} == {FAST.name, SLOW.name}
    (mixed,) = submeshes(MIXED, 32, max_axes=1)
    assert mixed.device.name == f"{FAST.name}+{SLOW.name}"
    assert [mesh.sizes for mesh in submeshes(load_cluster("dgx-h100:32"), 8, max_axes=1)] == [(8,)]
    assert [mesh.sizes for mesh in submeshes(TWO_OF_TWO, 1)] == [(1,)]


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ClusterError, match=r"stages of \[4, 5\] devices need 9; cluster c has 8"):
        place(TWO_OF_FOUR, [4, 5])
    with pytest.raises(ClusterError, match="whole numbers"):
        place(TWO_OF_FOUR, [4, 0])
    with pytest.raises(ClusterError, match="whole numbers"):
        place(TWO_OF_FOUR, [])
    with pytest.raises(ClusterError, match=f"a stage of 8 {FAST.name}, of which 0 are left"):
        place(MIXED, [8, 8, 8], [FAST.name] * 3)
    with pytest.raises(ClusterError, match="no device 'tpu'"):
        place(MIXED, [8], ["tpu"])
    with pytest.raises(ClusterError, match="one type, or None, per stage"):
        place(MIXED, [8], [])
    with pytest.raises(ClusterError, match="need 9"):
        submeshes(TWO_OF_FOUR, 9)
