"""Seconds of collectives: closed forms, monotone in bytes and group size, regimes, backends."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster import KINDS, Axis, Group, Hop, collective_s, load_cluster
from meshwright.errors import ClusterError

kinds = st.sampled_from(KINDS)
backends = st.sampled_from(["nccl", "gloo"])
latencies_s = st.floats(0, 1e-3)
rates = st.floats(1e6, 1e12)
sizes = st.integers(2, 64)


def one_level(n: int, latency_s: float, rate: float, backend: str) -> Axis:
    return Axis("a", n, (Hop("host", n, latency_s, rate),), backend, 1e-6)


@given(kinds, backends, sizes, sizes, latencies_s, rates, st.lists(st.integers(0, 1 << 40), min_size=2, max_size=6))
def test_monotone_in_bytes(
    kind: str, backend: str, inner: int, outer: int, latency_s: float, rate: float, sent: list[int]
) -> None:
    hops = (Hop("host", inner, latency_s / 4, rate * 3), Hop("pod", outer, latency_s, rate))
    axis = Axis("a", inner * outer, hops, backend)
    seconds = [collective_s(kind, n_bytes, axis) for n_bytes in sorted(sent)]
    assert all(a <= b for a, b in pairwise(seconds))


@given(kinds, backends, st.integers(0, 1 << 34), latencies_s, rates)
def test_monotone_in_group_size_within_a_level(
    kind: str, backend: str, n_bytes: int, latency_s: float, rate: float
) -> None:
    seconds = [collective_s(kind, n_bytes, one_level(n, latency_s, rate, backend)) for n in range(2, 70)]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(seconds))


def test_large_messages_follow_the_closed_forms() -> None:
    axis, n_bytes = one_level(8, 0.0, 1e9, "nccl"), 1e9
    expected = {"all_reduce": 2 * 7 / 8, "all_gather": 7 / 8, "reduce_scatter": 7 / 8, "all_to_all": 7 / 8}
    for kind, seconds in {**expected, "broadcast": 1.0, "send": 1.0}.items():
        assert collective_s(kind, n_bytes, axis) == pytest.approx(seconds + 1e-6)


def test_gloo_scatters_as_dearly_as_it_reduces_and_nccl_does_not() -> None:
    gloo, nccl = one_level(4, 1e-5, 1e9, "gloo"), one_level(4, 1e-5, 1e9, "nccl")
    assert collective_s("reduce_scatter", 1e8, gloo) == collective_s("all_reduce", 1e8, gloo)
    assert collective_s("reduce_scatter", 1e8, nccl) < 0.6 * collective_s("all_reduce", 1e8, nccl)


def test_small_messages_are_latency_and_large_ones_bandwidth() -> None:
    axis = one_level(64, 1e-5, 1e11, "nccl")
    small = [collective_s("all_reduce", n_bytes, axis) for n_bytes in (8, 1024)]
    assert small[1] == pytest.approx(small[0], rel=0.01)
    large = [collective_s("all_reduce", n_bytes, axis) for n_bytes in (1 << 34, 1 << 35)]
    assert large[1] == pytest.approx(2 * large[0], rel=0.01)
    # 64 ranks: a tree's 12 steps against a ring's 126
    assert collective_s("all_reduce", 8, axis) < 0.2 * collective_s("all_gather", 8, axis)


def test_hierarchy_beats_a_flat_ring_where_the_network_is_slow() -> None:
    mesh = load_cluster("dgx-h100:4").mesh((32,), ("dp",))
    (inside, across), n_bytes = mesh.axis("dp").hops, 1 << 30
    a_flat_ring_of_one_card_each = 2 * 31 / 32 * n_bytes / across.rate("all_reduce")
    assert collective_s("all_reduce", n_bytes, mesh.axis("dp")) < a_flat_ring_of_one_card_each / 4
    assert inside.level == "host"


def hosts_of_eight(hosts: int) -> Axis:
    return Axis("a", 8 * hosts, (Hop("host", 8, 0.0, 400e9), Hop("pod", hosts, 0.0, 10e9)), "nccl")


def test_two_hosts_swap_halves_where_more_pass_everything_twice() -> None:
    n_bytes = 1 << 30
    two, three, many = (collective_s("all_reduce", n_bytes, hosts_of_eight(n)) for n in (2, 3, 512))
    assert two == pytest.approx(n_bytes / 80e9)
    assert three == pytest.approx(2 * 23 / 24 * n_bytes / 80e9)
    assert many == pytest.approx(2 * n_bytes / 80e9, rel=0.001)
    gathers = [collective_s("all_gather", n_bytes, hosts_of_eight(n)) for n in (2, 3)]
    assert gathers == pytest.approx([15 / 16 * n_bytes / 80e9, 23 / 24 * n_bytes / 80e9])


# The best of the range that the HF Ultra-Scale Playbook shows for 256 MB on 2, 8 and 64 hosts of 8 H100, and its mean.
PUBLISHED = {
    "all_reduce": {2: (1.10e-3, 1.33e-3), 8: (2.62e-3, 5.06e-3), 64: (2.88e-3, 15.5e-3)},
    "all_gather": {2: (1.06e-3, 1.30e-3), 8: (1.41e-3, 3.65e-3), 64: (5.75e-3, 23.1e-3)},
}


@pytest.mark.parametrize(("kind", "hosts"), [(kind, hosts) for kind, by in PUBLISHED.items() for hosts in by])
def test_hosts_of_the_preset_take_what_was_published(kind: str, hosts: int) -> None:
    axis = load_cluster(f"dgx-h100:{hosts}").mesh((8 * hosts,)).axes[0]
    best_s, mean_s = PUBLISHED[kind][hosts]
    assert 0.95 * best_s <= collective_s(kind, 256e6, axis) <= mean_s


def test_a_group_waits_for_each_of_its_ranks_beyond_two_hosts() -> None:
    """With one rank in each host it waits for fewer than with eight; beyond 512 it waits no more."""
    each, still = 5e-14, load_cluster("dgx-h100:128")
    cluster = replace(still, root=replace(still.root, link=replace(still.root.link, jitter=each)))

    def waits_s(shape: tuple[int, int], kind: str) -> float:
        plain, waiting = (collective_s(kind, 1e12, c.mesh(shape).axis("x")) for c in (still, cluster))
        return (waiting - plain) / 1e12

    assert waits_s((16, 1), "all_gather") == pytest.approx(0.0, abs=1e-18)
    assert waits_s((128, 1), "all_gather") == pytest.approx(each * 112)
    assert waits_s((128, 1), "all_reduce") == pytest.approx(2 * each * 112)
    assert waits_s((16, 8), "all_gather") == pytest.approx(each * 14)
    assert waits_s((1024, 1), "all_gather") == pytest.approx(each * 512)


def test_a_tapered_network_loses_rate_with_every_host() -> None:
    cluster = load_cluster("dgx-h100:8")
    assert isinstance(cluster.root.members[0].of, Group)
    flat, tapered = (
        replace(cluster, root=replace(cluster.root, link=replace(cluster.root.link, taper=taper)))
        for taper in (0.0, 0.5)
    )
    for hosts, slower in ((2, 1.0), (8, 2.0)):
        plain, less = (c.mesh((hosts, 8)).axis("x").hops[-1].bandwidth for c in (flat, tapered))
        assert plain / less == pytest.approx(slower)
    assert tapered.mesh((8, 8)).axis("y") == cluster.mesh((8, 8)).axis("y")  # within a host nothing changes


def test_contention_slows_groups_that_share_a_link() -> None:
    cluster = load_cluster("p3.16xlarge:2")
    alone = cluster.mesh((2,), ranks=(0, 8)).axis("x")
    eight_groups = cluster.mesh((2, 8)).axis("x")
    ratio = collective_s("all_gather", 1 << 30, eight_groups) / collective_s("all_gather", 1 << 30, alone)
    assert ratio == pytest.approx(8, rel=0.01)


def test_a_group_of_one_is_free_and_an_unknown_kind_is_refused() -> None:
    assert collective_s("all_reduce", 1e9, Axis("a", 1, ())) == 0.0
    with pytest.raises(ClusterError, match="gossip"):
        collective_s("gossip", 1.0, Axis("a", 1, ()))
