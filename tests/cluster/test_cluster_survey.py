"""Detection on simulated jobs whose truth is known: structure exact, figures close, few groups and probes."""

from __future__ import annotations

import random

import pytest
from simulated_prober import SimulatedProber

from meshwright.cluster import Cluster, Group, Link, Member, load_cluster
from meshwright.cluster.detect.devices import device_types
from meshwright.cluster.detect.islands import Island, find_islands, pull_in_slow_members
from meshwright.cluster.detect.probe import RankInfo
from meshwright.cluster.detect.survey import Survey
from meshwright.cluster.toml.read import read_cluster
from meshwright.cluster.toml.write import write_cluster

CPU = load_cluster("local").devices[0]


def host(n: int, link: Link = Link(1e-5, 4e9)) -> Group:  # noqa: B008
    return Group("host", link, (Member("cpu", n),))


def truth(root: Group) -> Cluster:
    cluster = Cluster("truth", "gloo", (CPU,), root, 5e-5)
    cluster.verify()
    return cluster


NET = Link(2e-4, 25e6)
UNIFORM = truth(Group("pod", NET, (Member(host(1), 4),)))
PAIRS = truth(Group("pod", NET, (Member(host(2), 3),)))
THREE = truth(Group("pod", Link(5e-4, 10e6), (Member(Group("rack", Link(2e-4, 50e6), (Member(host(2), 2),)), 2),)))
SLOW_HOST = truth(Group("pod", NET, (Member(host(1), 2), Member(host(1), 1, Link(2e-4, 8e6)), Member(host(1), 1))))
SLOW_FIRST = truth(Group("pod", NET, (Member(host(1), 1, Link(2e-4, 8e6)), Member(host(1), 3))))
THREE_AND_FIVE = truth(Group("pod", NET, (Member(host(3)), Member(host(5)))))
MANY_CARDS = truth(Group("pod", Link(1e-5, 50e9, 8), (Member(host(8, Link(1e-6, 450e9)), 4),)))
SHARED = truth(host(6, Link(1e-5, 2e9, shared=True)))
NVLINK_PAIRS = truth(
    Group("host", Link(1e-5, 1e10), (Member(Group("island", Link(1e-6, 2e11), (Member("cpu", 2),)), 4),))
)
LARGE = truth(Group("pod", Link(1e-5, 1e9), (Member(Group("rack", Link(1e-5, 1e10), (Member(host(8), 8),)), 4),)))

RACKS_OF_ONE_RANK_HOSTS = truth(
    Group(
        "pod",
        Link(5e-4, 10e6),
        (
            Member(Group("rack", Link(2e-4, 50e6), (Member(host(1), 3),))),
            Member(Group("rack", Link(2e-4, 50e6), (Member(host(1), 2), Member(host(1), 1, Link(2e-4, 20e6))))),
        ),
    )
)

RACK = Group("rack", Link(2e-4, 50e6), (Member(host(1), 3),))
SLOW_RACK = truth(Group("pod", Link(5e-4, 12e6), (Member(RACK, 2), Member(RACK, 1, Link(5e-4, 5e6)), Member(RACK))))
SLOW_HOST_OF_TWO = truth(Group("pod", NET, (Member(host(2), 2), Member(host(2), 1, Link(2e-4, 8e6)))))

ALL = {
    "uniform": UNIFORM, "pairs": PAIRS, "three levels": THREE, "slow host": SLOW_HOST, "slow first": SLOW_FIRST,
    "3 + 5": THREE_AND_FIVE, "many cards": MANY_CARDS, "shared": SHARED, "nvlink pairs": NVLINK_PAIRS,
    "large": LARGE, "racks": RACKS_OF_ONE_RANK_HOSTS, "slow rack": SLOW_RACK, "slow host of two": SLOW_HOST_OF_TWO,
}  # fmt: skip


def skeleton(group: Group) -> object:
    """Structure without figures."""
    return group.level, [
        (member.count, "device" if isinstance(member.of, str) else skeleton(member.of), member.uplink is not None)
        for member in group.members
    ]


def links(group: Group) -> list[Link]:
    """Every link that can be measured: a group of one has none."""
    alone = sum(member.count for member in group.members) == 1
    found = [] if alone else [group.link, *(member.uplink for member in group.members if member.uplink)]
    return found + [link for member in group.members if isinstance(member.of, Group) for link in links(member.of)]


@pytest.mark.parametrize("name", ALL)
def test_structure_is_exact_and_figures_within_15_percent(name: str) -> None:
    true = ALL[name]
    found = Survey(SimulatedProber(true), "gloo").cluster()
    found.verify()
    assert skeleton(found.root) == skeleton(true.root), f"\n{found}\nagainst\n{true}"
    assert read_cluster(write_cluster(found), "written") == found
    for measured, real in zip(links(found.root), links(true.root), strict=True):
        assert measured.total_bandwidth == pytest.approx(real.total_bandwidth, rel=0.15), (measured, real)
        assert measured.latency_s == pytest.approx(real.latency_s, rel=0.15)
        assert (measured.count, measured.shared) == (real.count, real.shared)
        assert all(0.8 < fraction < 1.2 for _, fraction in measured.efficiency)


def test_groups_grow_with_levels_and_probes_with_members() -> None:
    prober = SimulatedProber(LARGE)
    survey = Survey(prober, "gloo")
    survey.cluster()
    n_hosts, n_levels = 32, 3
    assert len(prober.groups) == n_levels
    assert len(survey.probes.known) < 2.5 * n_hosts * n_levels  # of 32640 pairs of ranks


def test_one_host_that_is_slow_inside_keeps_its_own_link() -> None:
    slow = host(4, Link(1e-5, 1e9))
    true = truth(Group("pod", NET, (Member(host(4), 3), Member(slow))))
    found = Survey(SimulatedProber(true), "gloo").cluster()
    inner = [member.of.link.bandwidth for member in found.root.members if isinstance(member.of, Group)]
    assert inner == pytest.approx([4e9, 1e9], rel=0.15)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 8])
def test_any_number_of_ranks_on_one_host(n: int) -> None:
    found = Survey(SimulatedProber(truth(host(n))), "gloo").cluster()
    assert found.device_count == n
    assert found.root.levels() == ("host",)
    assert dict(found.sources)["host.bandwidth"]


def test_names_of_drivers_are_known_by_family_form_and_memory() -> None:
    """A driver's name says PCIe where a card is one, and its memory tells an A100 of 40 GB from one of 80."""
    expected = {
        ("NVIDIA H100 80GB HBM3", 85): 989e12,
        ("NVIDIA H100 PCIe", 85): 756.5e12,
        ("NVIDIA GeForce RTX 4090", 25): 165.2e12,
        ("NVIDIA GeForce RTX 2060", 6): 1e12,
    }
    for (name, gigabytes), peak in expected.items():
        info = RankInfo("h", name, "cuda", gigabytes * 10**9, 3e12, 1e-5, (("float32", 1e11), ("bfloat16", 1e12)))
        (device,), _, _ = device_types([info])
        assert device.peak_flops("bfloat16") == peak, name
    info = RankInfo("h", "NVIDIA A100-SXM4-40GB", "cuda", 40 * 10**9, 1e12, 1e-5, (("bfloat16", 2e14),))
    assert device_types([info])[0][0].memory_bandwidth < 1.7e12


def test_mixed_devices_become_types_and_known_ones_keep_their_nominal_rates() -> None:
    def info(name: str, memory_bytes: int, flops: float) -> RankInfo:
        rates = (("float32", flops / 10), ("bfloat16", flops))
        return RankInfo("h", name, "cuda", memory_bytes, 3e12, 1e-5, rates)

    ranks = [info("NVIDIA H100 80GB HBM3", 80 << 30, 7.9e14)] * 2 + [info("Mystery 9", 16 << 30, 1e13)] * 3
    devices, types, sources = device_types(ranks)
    known, unknown = devices
    assert types == ["NVIDIA H100 80GB HBM3"] * 2 + ["Mystery 9"] * 3
    assert (known.peak_flops("bfloat16"), unknown.peak_flops("bfloat16")) == (989e12, 1e13)
    assert known.achievable_fraction("matmul") == pytest.approx(7.9 / 9.89)
    assert known.achievable_fraction("memory") == pytest.approx(3 / 3.35)
    assert [source.split(" ")[0] for _, source in sources] == ["nominal", "measured:"]
    halves, half_types, _ = device_types([info("X", 1 << 30, 1e13), info("X", 2 << 30, 1e13)])
    assert half_types == ["X-1GiB", "X-2GiB"] == [device.name for device in halves]


def random_tree(source: random.Random, members: list[int], rate: float, depth: int) -> Island | int:
    if len(members) == 1:
        return members[0]
    if depth == 0 or len(members) < 4:
        return Island(rate, tuple(members))
    cut = source.randint(2, len(members) - 2)
    parts = [members[:cut], members[cut:]]
    return Island(rate, tuple(random_tree(source, part, rate * 3, depth - 1) for part in parts))


def rate_in(tree: Island | int, a: int, b: int) -> float:
    assert isinstance(tree, Island)
    for child in tree.children:
        if isinstance(child, Island) and {a, b} <= set(child.members()):
            return rate_in(child, a, b)
    return tree.rate


@pytest.mark.parametrize("seed", range(20))
def test_islands_of_random_trees_are_found_whatever_the_order(seed: int) -> None:
    source = random.Random(seed)
    tree = random_tree(source, list(range(source.randint(2, 14))), 1.0, 3)
    order = list(range(len(list(tree.members())))) if isinstance(tree, Island) else [0]
    source.shuffle(order)
    found = find_islands(order, lambda a, b: rate_in(tree, a, b) * source.uniform(0.95, 1.05))
    for a in order:
        for b in order:
            if a < b:
                assert rate_in(found, a, b) == pytest.approx(rate_in(tree, a, b), rel=0.15)


def test_a_lone_slow_member_is_a_link_not_a_level() -> None:
    tree, slow = pull_in_slow_members(Island(1.0, (3, Island(5.0, (0, 1, 2)))))
    assert tree == Island(5.0, (0, 1, 2, 3))
    assert slow == {3: 1.0}
    near = Island(50.0, (0, 1)), Island(50.0, (2, 3)), Island(50.0, (4, 5))
    tree, slow = pull_in_slow_members(Island(1.0, (Island(5.0, near[:2]), near[2])))
    assert (tree, slow) == (Island(5.0, near), {4: 1.0})  # a rack beside two racks
    tree, slow = pull_in_slow_members(Island(1.0, (Island(2.0, (Island(5.0, (0, 1)), 2)), 3)))
    assert (tree, slow) == (Island(5.0, (0, 1, 2, 3)), {2: 2.0, 3: 1.0})
    two_levels = Island(1.0, near)
    assert pull_in_slow_members(two_levels) == (two_levels, {})


def test_a_slow_uplink_is_not_said_to_be_a_slow_device() -> None:
    assert "host.slow" not in dict(Survey(SimulatedProber(SLOW_HOST_OF_TWO), "gloo").cluster().sources)
