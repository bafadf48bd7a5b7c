"""Hosts of different sizes and links: what a collective costs is never below what the slowest host allows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster import KINDS, Axis, Cluster, Group, Link, Member, Mesh, collective_s, load_cluster

DEVICE = load_cluster("dgx-h100").devices[0]
GB = 1e9


def host(devices: int, rate: float, latency_s: float = 3e-6) -> Group:
    return Group("host", Link(latency_s, rate), (Member(DEVICE.name, devices),))


def pod(*hosts: Member, link: Link | None = None, backend: str = "nccl") -> Cluster:
    return Cluster("uneven", backend, (DEVICE,), Group("pod", link or Link(1e-5, 50 * GB), hosts))


SLOW = Member(host(4, 100 * GB, 5e-6), 4, Link(1e-5, 12.5 * GB))
FAST = Member(host(8, 450 * GB), 2)


def inner(cluster: Cluster, size: int = 8) -> Axis:
    return cluster.mesh((cluster.device_count // size, size), ("d", "t")).axis("t")


@pytest.mark.parametrize("hosts", [(FAST, SLOW), (SLOW, FAST)])
def test_fast_hosts_beside_slow_ones_do_not_make_them_faster(hosts: tuple[Member, ...]) -> None:
    alone, mixed = inner(pod(SLOW)), inner(pod(*hosts))
    for kind in KINDS:
        for n_bytes in (0, 1e4, 1e6, 1e9):
            assert collective_s(kind, n_bytes, mixed) == collective_s(kind, n_bytes, alone)
    # Two slow hosts of four a group: half of every rank's bytes leave through a quarter of 12.5 GB/s ...
    assert collective_s("all_to_all", GB, mixed) >= 0.5 / 3.125
    # ... and half of what a gather puts together comes to four ranks through all of it.
    assert collective_s("all_gather", GB, mixed) >= 0.5 / 12.5


def test_racks_of_different_hosts_stay_above_their_physical_bounds() -> None:
    def rack(hosts: int, of: Group) -> Member:
        return Member(Group("rack", Link(1e-5, 50 * GB), (Member(of, hosts),)))

    racks = (rack(2, host(8, 450 * GB)), rack(4, host(4, 100 * GB, 5e-6)))
    cluster = Cluster("halls", "nccl", (DEVICE,), Group("hall", Link(2e-5, 20 * GB), racks))
    axis = cluster.mesh((32,)).axes[0]
    # 16 ranks of a rack share 20 GB/s: a sum has to come in whole, and half of an exchange goes out.
    assert collective_s("all_reduce", GB, axis) >= 1 / 20
    assert collective_s("all_to_all", GB, axis) >= 16 * 0.5 / 20
    assert collective_s("all_gather", GB, axis) >= 0.5 / 20


def test_a_group_that_straddles_hosts_counts_the_rank_that_is_alone() -> None:
    axis = pod(Member(host(2, 400 * GB), 2)).mesh((3,)).axes[0]
    assert {(hops[-1].size, hops[-1].level) for hops in axis.kinds} == {(2, "pod")}
    # Two thirds of the output come to the one rank on the second host, over its own 50 GB/s.
    assert collective_s("all_gather", GB, axis) == pytest.approx(2 / 3 / 50, rel=0.01)
    assert collective_s("all_to_all", GB, axis) == pytest.approx(2 / 3 / 50, rel=0.01)


hosts = st.builds(
    Member,
    st.builds(host, st.sampled_from([2, 4, 8]), st.sampled_from([50 * GB, 450 * GB]), st.sampled_from([1e-6, 9e-6])),
    st.sampled_from([4, 8]),
    st.none() | st.builds(Link, st.sampled_from([1e-5, 1e-4]), st.sampled_from([1 * GB, 25 * GB]), st.just(2)),
)
links = st.builds(Link, st.just(1e-5), st.just(10 * GB), st.sampled_from([1, 4]), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(hosts, min_size=1, max_size=3), st.lists(hosts, min_size=1, max_size=2), links, st.booleans())
def test_more_hosts_never_lower_a_price(some: list[Member], more: list[Member], link: Link, gloo: bool) -> None:
    backend = "gloo" if gloo else "nccl"
    before, after = pod(*some, link=link, backend=backend), pod(*some, *more, link=link, backend=backend)
    pairs = [(c.mesh((c.device_count,)).axes[0], inner(c), inner(c, 4)) for c in (before, after)]
    for less, larger in zip(*pairs, strict=True):
        for kind in KINDS:
            for n_bytes in (0, 1e5, 1e9):
                assert collective_s(kind, n_bytes, larger) >= collective_s(kind, n_bytes, less) * (1 - 1e-12)


def test_uneven_meshes_round_trip_and_old_ones_still_load() -> None:
    mesh = pod(FAST, SLOW).mesh((4, 8), ("d", "t"))
    assert mesh.axis("t").others
    assert "; or 8 by host" in str(mesh.axis("t"))
    plain = json.loads(json.dumps(mesh.to_json()))
    assert Mesh.from_json(plain) == mesh
    even = load_cluster("dgx-h100:2").mesh((2, 8))
    old = even.to_json()
    for axis in (*old["axes"], *old["flat"]):
        assert not axis.pop("others")
        assert not any(hop.pop("behind") for hop in axis["hops"])
    assert Mesh.from_json(old) == even
