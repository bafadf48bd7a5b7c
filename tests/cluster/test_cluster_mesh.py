"""Meshes: axes bound to links, contention, mixed hosts, JSON."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest

from meshwright.cluster import (
    Cluster,
    Group,
    Link,
    Member,
    Mesh,
    collective_s,
    load_cluster,
    logical_mesh,
    meshes,
    place,
)
from meshwright.errors import ClusterError


def test_axes_know_their_links_and_share_the_uplink() -> None:
    mesh = load_cluster("dgx-h100:4").mesh((4, 8), ("dp", "tp"))
    (across,), (inside,) = mesh.axis("dp").hops, mesh.axis("tp").hops
    assert (across.level, across.size) == ("pod", 4)
    assert across.bandwidth == pytest.approx(8 * 50e9 / 8 / 2**0.1)  # eight groups share eight cards, tapered
    assert (inside.level, inside.size) == ("host", 8)
    assert [(hop.level, hop.size) for hop in mesh.axis("dp*tp").hops] == [("host", 8), ("pod", 4)]


def test_contention_grows_with_the_ranks_that_share_a_link() -> None:
    host = Group("host", Link(1e-6, 100e9), (Member("H100-SXM-80GB", 8),))
    base = load_cluster("dgx-h100:2")
    one_card = Cluster("one card", "nccl", base.devices, Group("pod", Link(1e-5, 12.5e9), (Member(host, 2),)))
    rates = [one_card.mesh((2, k), ranks=[*range(k), *range(8, 8 + k)]).axis("x").hops[0].bandwidth for k in (1, 2, 8)]
    assert rates == pytest.approx([12.5e9, 6.25e9, 12.5e9 / 8])


def test_mixed_hosts_make_one_cluster() -> None:
    fast = load_cluster("dgx-h100").devices[0]
    slow = load_cluster("local").devices[0]
    hosts = (
        Member(Group("host", Link(1e-6, 4e11), (Member(fast.name, 8),)), 2),
        Member(Group("host", Link(1e-6, 1e11), (Member(slow.name, 4),)), 4),
    )
    cluster = Cluster("mixed", "nccl", (fast, slow), Group("pod", Link(1e-5, 5e10), hosts))
    cluster.verify()
    assert cluster.device_count == 32
    assert cluster.mesh((16,)).device == fast
    assert cluster.mesh((16,), ranks=range(16, 32)).device == slow
    mixed = cluster.mesh((32,)).device
    assert mixed.peak_flops("float32") == min(fast.peak_flops("float32"), slow.peak_flops("float32"))
    assert mixed.usable_bytes == min(fast.usable_bytes, slow.usable_bytes)


def test_json_pickle_and_hash_round_trip() -> None:
    cluster = load_cluster("dgx-h100:2")
    mesh = cluster.mesh((2, 2, 4), ("pp", "dp", "tp"))
    again = Mesh.from_json(json.loads(json.dumps(mesh.to_json())))
    assert again == mesh
    assert hash(again) == hash(mesh)
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert Cluster.from_json(json.loads(json.dumps(cluster.to_json()))) == cluster


def test_bad_meshes_are_refused_by_name() -> None:
    with pytest.raises(ClusterError, match=r"needs 16 devices; cluster dgx-h100:1 has 8"):
        load_cluster("dgx-h100").mesh((2, 8))
    with pytest.raises(ClusterError, match="repeat a name"):
        load_cluster("dgx-h100").mesh((2, 4), ("x", "x"))
    with pytest.raises(ClusterError, match="no axis 'q'"):
        logical_mesh({"a": 2}).axis("q")
    with pytest.raises(ClusterError, match="whole number"):
        load_cluster("dgx-h100:x")
    with pytest.raises(ClusterError, match="preset"):
        load_cluster("dgx-h1000")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8,), "a tuple of sizes"),
        (("24",), "whole numbers"),
        (((-2, -4),), "whole numbers"),
        (((0,),), "whole numbers"),
        (((2.0, 4),), "whole numbers"),
        (((2, 8), ("x",)), "one name per axis"),
        (((2, 8), (1, 2)), "one name per axis"),
        (((2,), None, (0, 0)), r"ranks \[0, 0\]"),
        (((2,), None, (0, 99)), "numbers from 0 to 15, the devices of cluster dgx-h100:2"),
        (((2,), None, (0, -1)), "numbers from 0 to 15"),
        (((2,), None, ("a", "b")), "numbers from 0 to 15"),
        (((2,), None, (0,)), r"ranks \[0\]"),
        (((2,), None, 5), "ranks 5"),
    ],
)
def test_what_is_no_mesh_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        load_cluster("dgx-h100:2").mesh(*arguments)  # type: ignore[arg-type]


def test_bad_arguments_are_refused_by_name() -> None:
    cluster = load_cluster("dgx-h100:2")
    for text in (3, None):
        with pytest.raises(ClusterError, match="a preset's name"):
            load_cluster(text)  # type: ignore[arg-type]
    for name in ("dgx-h100:", "dgx-h100:0", "dgx-h100:\u00b2", "dgx-h100:-1"):
        with pytest.raises(ClusterError, match="whole number of hosts"):
            load_cluster(name)
    with pytest.raises(ClusterError, match="meshes of 0 devices"):
        meshes(cluster, ranks=[])
    with pytest.raises(ClusterError, match="1 to 4"):
        meshes(cluster, max_axes=9)
    with pytest.raises(ClusterError, match="a cluster in JSON"):
        Cluster.from_json({"name": 3})
    with pytest.raises(ClusterError, match="a mesh in JSON"):
        Mesh.from_json({"axes": []})
    with pytest.raises(ClusterError, match=r"mesh\.axis"):
        collective_s("all_reduce", 1, "dp")  # type: ignore[arg-type]
    for n_bytes in (-1, float("nan"), float("inf"), "1", None):
        with pytest.raises(ClusterError, match=f"{n_bytes!r} bytes"):
            collective_s("all_reduce", n_bytes, cluster.mesh((8,)).axes[0])  # type: ignore[arg-type]
    logical_mesh({"x": 1}), logical_mesh({"x": 2})
    for size in ("2", 0, True, 2.0):
        with pytest.raises(ClusterError, match="whole numbers"):
            logical_mesh({"x": size})  # type: ignore[dict-item]
    with pytest.raises(ClusterError, match="taper is 1000"):
        Link(1e-6, 1e9, taper=1e3).verify("pod")
    with pytest.raises(ClusterError, match=r"stages of 5 devices(.|\n)*one per stage"):
        place(cluster, 5)  # type: ignore[arg-type]


def test_clusters_and_paths_import_without_torch() -> None:
    code = "import sys, meshwright.cluster, meshwright.layout; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_coordinates_are_row_major() -> None:
    mesh = logical_mesh({"a": 2, "b": 3})
    assert [mesh.coordinates(i) for i in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
