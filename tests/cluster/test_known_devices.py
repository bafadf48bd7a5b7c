"""Presets of devices: their figures are in physical order, hosts have sources, and a tiny GPT is planned on each."""

from __future__ import annotations

import re
from argparse import Namespace
from itertools import pairwise

import pytest
import torch

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cli.options import precision_for
from meshwright.cluster import load_cluster
from meshwright.cluster.cost import collective_s
from meshwright.cluster.detect.devices import known_name
from meshwright.cluster.device_table import GPUS
from meshwright.cluster.hosts import ALIASES, HOSTS
from meshwright.cluster.toml.read import read_cluster
from meshwright.errors import ClusterError
from meshwright.models.gpt import GPT
from meshwright.planner.plan import make_plan

NOMINAL_GB = {
    "a6000": 48, "a40": 48, "a10": 24, "t4": 16, "rtx-6000-ada": 48, "l40": 48, "h20": 96, "h800": 80, "a800": 80,
    "h100-nvl": 94, "h200-nvl": 141, "a100-pcie-40gb": 40, "v100-pcie": 16, "v100-pcie-32gb": 32, "mi325x": 256,
    "mi250x": 64, "p100": 16,
}  # fmt: skip
"""As their vendors call them; of an MI250X one die."""
PLANNED = ("p100", "a10", "h200-nvl", "mi325x")
"""For which a model is planned in the quick tests; in `make test-all` for all."""
WITHOUT_BF16 = ("v100", "v100-32gb", "v100-pcie", "v100-pcie-32gb", "t4", "p100", "2080ti", "titan-rtx")
ORDER = ("float4", "float8", "bfloat16", "tf32", "float32")


@pytest.mark.parametrize("name", GPUS)
def test_peaks_fall_as_numbers_get_wider(name: str) -> None:
    """By 2 from type to type; without tensor cores, or where those sum slowly, not at all. No rate is for sparsity."""
    peaks = dict(GPUS[name].device.peaks)
    if "bfloat16" in peaks:
        assert peaks["float16"] == peaks["bfloat16"]
        rates = [peaks[kind] for kind in ORDER if kind in peaks]
    else:
        assert set(peaks) == {"float16", "float32"}
        rates = [peaks["float16"], peaks["float32"]]
    assert all(wide <= narrow for narrow, wide in pairwise(rates))
    for narrow, wide in (("float8", "bfloat16"), ("bfloat16", "tf32")):
        if narrow in peaks and wide in peaks and name != "RTX-5090":  # whose rates were measured
            assert peaks[narrow] / peaks[wide] == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize("name", GPUS)
def test_memory_is_what_the_name_says(name: str) -> None:
    """Vendors count it in either way; of what a card has, torch shows some per cent less."""
    nominal = {ALIASES[alias]: gigabytes for alias, gigabytes in NOMINAL_GB.items()}
    named = re.search(r"-(\d+)GB", name)
    if named or name in nominal:
        gigabytes = int(named[1]) if named else nominal[name]
        assert 0.92 * gigabytes * 1e9 < GPUS[name].device.memory_bytes < 1.005 * gigabytes * (1 << 30)


def test_those_for_one_market_differ_from_the_others_in_their_links_alone() -> None:
    for alias, like, bandwidth in (("h800", "h100", 450e9), ("a800", "a100", 300e9)):
        own, other = (load_cluster(f"{name}:8") for name in (alias, like))
        assert own.devices[0].peaks == other.devices[0].peaks
        assert own.devices[0].memory_bandwidth == other.devices[0].memory_bandwidth
        assert (own.root.link.bandwidth, other.root.link.bandwidth) == (200e9, bandwidth)
        slow, fast = (collective_s("all_reduce", 1 << 30, one.mesh((8,)).axes[0]) for one in (own, other))
        assert slow / fast == pytest.approx(bandwidth / 200e9, rel=0.01)


@pytest.mark.parametrize(("alias", "bridged"), [("h100-nvl", 2), ("h200-nvl", 4)])
def test_cards_on_a_bridge_reach_each_other_faster_than_the_rest(alias: str, bridged: int) -> None:
    host = load_cluster(f"{alias}:8").root
    assert [member.count for member in host.members] == [8 // bridged]
    inner, across = (load_cluster(f"{alias}:{count}").mesh((count,)).axes[0] for count in (bridged, 8))
    assert [[hop.level for hop in axis.hops] for axis in (inner, across)] == [["bridge"], ["bridge", "host"]]
    assert collective_s("all_reduce", 1 << 28, across) > 3 * collective_s("all_reduce", 1 << 28, inner)


@pytest.mark.parametrize("alias", sorted({device: alias for alias, device in reversed(ALIASES.items())}.values()))
def test_every_figure_of_a_device_and_its_hosts_has_a_source(alias: str) -> None:
    cluster = load_cluster(f"{alias}:2x{min(8, HOSTS[ALIASES[alias]].devices)}")
    sources, (device,) = dict(cluster.sources), cluster.devices
    wanted = [
        f"{device.name}.{figure}" for figure in ("peaks", "memory_bytes", "memory_bandwidth", "achievable.matmul")
    ]
    wanted += [f"{level}.{figure}" for level in cluster.root.levels() for figure in ("bandwidth", "efficiency")]
    assert [figure for figure in wanted if not sources.get(figure)] == []
    assert "{" not in "".join(sources.values())


@pytest.mark.parametrize("alias", ALIASES)
def test_precision_is_mixed_where_there_is_bf16(alias: str) -> None:
    cluster = load_cluster(f"{alias}:2")
    without = ALIASES[alias] in {ALIASES[one] for one in WITHOUT_BF16}
    assert precision_for(Namespace(precision=None), cluster) == ("fp32" if without else "mixed")
    if without:  # asked for all the same, it is done in float32
        assert cluster.devices[0].peak_flops("bfloat16") == cluster.devices[0].peak_flops("float32")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("a6000x", "a6000"), ("h100-nvlink", "h100-nvl"), ("rtx-6000ada", "rtx-6000-ada"), ("mi250", "mi250x")],
)
def test_a_name_close_to_one_is_asked_about(wrong: str, meant: str) -> None:
    with pytest.raises(ClusterError, match=rf"did you mean .*\b{meant}\b"):
        load_cluster(f"{wrong}:2")


def test_a_file_that_names_no_form_is_like_the_module() -> None:
    text = """\
backend = "nccl"
[device.mine]
memory = "40GiB"
memory_bandwidth = "1555GB/s"
peaks = { bfloat16 = "312T", float32 = "19.5T" }
[level.host]
bandwidth = "300GB/s"
[[host]]
device = "mine"
devices = 8
"""
    assert read_cluster(text, "file").devices[0].profile == "A100-SXM-40GB"


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA H800", "H800-SXM-80GB"),
        ("NVIDIA H800 PCIe", None),
        ("NVIDIA A800-SXM4-80GB", "A800-SXM-80GB"),
        ("NVIDIA A800 80GB PCIe", None),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("Tesla V100-PCIE-32GB", "V100-PCIe-32GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("Tesla P100-SXM2-16GB", None),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("Quadro RTX 6000", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Server"),
        ("AMD Instinct MI250X", "MI250X"),
    ],
)
def test_what_torch_calls_a_gpu_is_known_in_its_own_form(name: str, device: str | None) -> None:
    assert known_name(name) == device


@pytest.fixture(scope="module")
def tiny() -> Program:
    tokens = torch.zeros(4, 12, dtype=torch.long)
    gpt = GPT(layers=1, hidden=32, heads=2, ffn=64, vocab=64, seq=12, tied=False)
    return capture(gpt, {"tokens": tokens, "targets": tokens})


@pytest.mark.parametrize(
    "alias", [pytest.param(one, marks=[pytest.mark.full] * (one not in PLANNED)) for one in NOMINAL_GB]
)
def test_a_tiny_gpt_is_planned(alias: str, tiny: Program) -> None:
    cluster = load_cluster(f"{alias}:2")
    plan = make_plan(tiny, cluster, pins=("pp=1", "microbatch=1"))
    assert 0 < plan.predicted.step_s < 0.1
    assert 0 < plan.predicted.peak_bytes < cluster.devices[0].usable_bytes
