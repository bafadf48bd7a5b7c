"""Measured collectives: the fit is near the samples, grows as it should, and is what clusters are priced by."""

from __future__ import annotations

from itertools import pairwise

import pytest

from meshwright.cluster import collective_s, load_cluster
from meshwright.cluster.collective_table import MEASURED, link_table, measured_lines, measured_links, reached
from meshwright.errors import ClusterError

SIZES = [1 << power for power in range(9, 34, 2)]


def seconds(name: str, kind: str, size: int, n_bytes: float) -> float:
    return min(s_per_byte * n_bytes + fixed_s for s_per_byte, fixed_s in measured_lines(name, kind, size))


@pytest.mark.parametrize("name", measured_links())
def test_every_table_has_its_source_and_grows_with_the_bytes(name: str) -> None:
    table = link_table(name)
    assert table["source"]
    assert set(table["lines"]) == set(MEASURED)
    for kind in (*MEASURED, "broadcast", "send"):
        for size in (2, 3, 4, 6, 8, 16, 72):
            found = [seconds(name, kind, size, n_bytes) for n_bytes in SIZES]
            assert all(a <= b for a, b in pairwise(found))
            halves = [2 * seconds(name, kind, size, n_bytes / 2) for n_bytes in SIZES]
            assert all(whole <= two * (1 + 1e-9) for whole, two in zip(found, halves, strict=True))


@pytest.mark.parametrize("name", [name for name in measured_links() if link_table(name)["samples"]])
def test_the_fit_is_near_the_measured_samples(name: str) -> None:
    errors = [
        abs(seconds(name, kind, int(size), n_bytes) / measured_s - 1)
        for kind, sizes in link_table(name)["samples"].items()
        for size, samples in sizes.items()
        for n_bytes, measured_s in samples
    ]
    assert sorted(errors)[len(errors) // 2] < 0.05


def test_sizes_that_nobody_measured_lie_between_their_neighbours_and_go_on_beyond() -> None:
    for n_bytes in (4096, 1 << 24, 1 << 30):
        four, six, eight, many = (seconds("H100-SXM-80GB", "all_gather", size, n_bytes) for size in (4, 6, 8, 64))
        assert four <= six <= eight <= many
    assert reached("H100-SXM-80GB", "all_gather", 64) == pytest.approx(reached("H100-SXM-80GB", "all_gather", 8))


def test_a_host_is_priced_by_its_table_and_a_slower_link_in_proportion() -> None:
    axis = load_cluster("h100:8").mesh((8,)).axes[0]
    assert collective_s("all_reduce", 1 << 28, axis) == pytest.approx(1.092e-3, rel=0.05)  # nccl-tests, half precision
    fast, slow = (load_cluster(name).mesh((2,)).axes[0] for name in ("rtx-pro-6000:2", "l40s:2"))
    assert collective_s("send", 1 << 30, slow) == pytest.approx(2 * collective_s("send", 1 << 30, fast), rel=0.01)


def test_sockets_share_the_way_between_them() -> None:
    """SimuMax on A100 PCIe: about 20 GB/s inside a socket, 13.5 through both, 4 for each of four groups of two."""
    cluster = load_cluster("a100-pcie:8")
    inside, whole = cluster.mesh((2, 4)).axis("y"), cluster.mesh((8,)).axes[0]
    across = cluster.mesh((2, 4)).axis("x")
    rates = [
        (axis.size - 1) / axis.size * (1 << 30) / collective_s("all_gather", 1 << 30, axis) / 1e9
        for axis in (inside, whole, across)
    ]
    assert rates == pytest.approx([20.75, 13.5, 4.0], rel=0.15)


def test_names_that_are_not_known() -> None:
    with pytest.raises(ClusterError, match="measured link 'nowhere'"):
        link_table("nowhere")
    for text, expected in (
        ("h100:16", "at most 8"),
        ("h100:0", "number of devices"),
        ("h100:100000000", "at most 100,000 hosts"),
        (f"h100:8x{'9' * 5000}", "at most 100,000 hosts"),
        ("4090:2x2x2", "hosts x devices"),
    ):
        with pytest.raises(ClusterError, match=expected):
            load_cluster(text)
    assert load_cluster("a100-40gb:4x8").device_count == 32
    assert load_cluster("4090:2").devices[0].memory_bytes < 26e9
