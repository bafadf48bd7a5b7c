"""Presets carry a source for every figure; enumeration finds every shape once."""

from __future__ import annotations

from math import prod

import pytest

from meshwright.cluster import Cluster, Group, Link, Member, load_cluster
from meshwright.cluster.enumerate import meshes, shapes
from meshwright.cluster.presets import PRESETS

FIGURES = (
    "peaks",
    "memory_bytes",
    "memory_bandwidth",
    "launch_s",
    "reserve_bytes",
    "achievable.matmul",
    "achievable.memory",
)


@pytest.mark.parametrize("name", PRESETS)
def test_every_figure_has_a_source_or_says_it_is_assumed(name: str) -> None:
    cluster = load_cluster(f"{name}:2")
    sources = dict(cluster.sources)
    wanted = [f"{device.name}.{figure}" for device in cluster.devices for figure in FIGURES] + ["overhead_s"]
    for level in cluster.root.levels():
        wanted += [f"{level}.bandwidth", f"{level}.latency_s"]
        wanted += [f"{level}.efficiency"]
        wanted += ["pod.taper"] if level == "pod" else []
    assert [figure for figure in wanted if not sources.get(figure)] == []


def test_presets_are_what_their_names_say() -> None:
    counts = {"local:3": 3, "p3.16xlarge": 8, "dgx-a100:4": 32, "dgx-h100:32": 256, "gb200-nvl72:2": 144}
    assert {name: load_cluster(name).device_count for name in counts} == counts
    assert load_cluster("dgx-h200").devices[0].memory_bytes == 143771 << 20
    assert load_cluster("p3.16xlarge").devices[0].peak_flops("bfloat16") == 15.7e12  # no units: done in float32


def test_shapes_are_the_ordered_factorisations() -> None:
    assert set(shapes(8)) == {(8,), (2, 4), (4, 2), (2, 2, 2)}
    assert list(shapes(1)) == [(1,)]
    assert list(shapes(7)) == [(7,)]
    found = list(shapes(96, 4))
    assert len(found) == len(set(found))
    assert all(prod(shape) == 96 and len(shape) <= 4 and min(shape) > 1 for shape in found)
    brute = {
        tuple(f for f in (a, b, c, 96 // (a * b * c)) if f > 1)
        for a in range(1, 97)
        for b in range(1, 97)
        for c in range(1, 97)
        if 96 % (a * b * c) == 0
    }
    assert set(found) == brute


def test_equivalent_meshes_come_once() -> None:
    assert sorted(mesh.sizes for mesh in meshes(load_cluster("dgx-h100"))) == [(2, 2, 2), (2, 4), (8,)]
    two_hosts = [mesh.sizes for mesh in meshes(load_cluster("dgx-h100:2"), max_axes=2)]
    assert sorted(two_hosts) == [(2, 8), (4, 4), (8, 2), (16,)]  # across hosts the order of axes matters


def test_three_levels_limit_traffic_by_the_narrowest_on_its_way() -> None:
    device = load_cluster("dgx-h100").devices[0]
    host = Group("host", Link(1e-6, 100e9), (Member(device.name, 2),))
    rack = Group("rack", Link(5e-6, 10e9), (Member(host, 2),))
    cluster = Cluster("three", "nccl", (device,), Group("pod", Link(1e-5, 40e9), (Member(rack, 2),)))
    mesh = cluster.mesh((2, 2, 2), ("p", "r", "h"))
    assert [mesh.axis(name).hops[0].level for name in "prh"] == ["pod", "rack", "host"]
    assert mesh.axis("h").hops[0].bandwidth == 100e9
    assert mesh.axis("r").hops[0].bandwidth == 5e9  # two devices share their host's 10 GB/s
    assert mesh.axis("p").hops[0].bandwidth == 5e9  # a rack has 40 GB/s for four, but first comes the host's link
    assert [hop.level for hop in mesh.axis("p*r*h").hops] == ["host", "rack", "pod"]


def test_a_smaller_host_has_fewer_network_cards() -> None:
    cards = {
        name: load_cluster(name).root.link.count for name in ("h100:8x1", "h100:2x4", "dgx-h100:2", "p3.16xlarge:2")
    }
    assert cards == {"h100:8x1": 1, "h100:2x4": 4, "dgx-h100:2": 8, "p3.16xlarge:2": 1}
