"""Kinds of hosts: their devices, the links inside and between them, each figure with its source.

Inside a host collectives are those of a measured table (`links/`), of the same link or of the nearest one that was
measured. Between hosts the figures are fitted to published bandwidths of 2 to 64 hosts.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cluster.collective_table import link_table
from meshwright.cluster.tree import Link

Sources = tuple[tuple[str, str], ...]

_ML_ENG = "stas00/ml-engineering@744d01e18b79 network/README.md"
_MLPERF = "mlcommons/training_results_v4.0@62f111b7690f, NVIDIA system description"
_AIC = "ai-dynamo/aiconfigurator@095f58a51c4c systems/*.yaml"
_MIST = "Dazz993/Mist@d69e530acb62 benchmark/mist/configs/experiment"
_SAILOR = "eth-easl/sailor@cf2c8e3 sailor/providers"
_PCIE = "PCIe: 64 GB/s each way (gen 5 x16), 32 GB/s (gen 4 x16)"
PLAYBOOK = "HF Ultra-Scale Playbook, collectives of 256 MB on 2 to 64 hosts of 8 H100: best of the shown range"
_ASSUMED = "assumption"

_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
QUIET, TAPER = 0.55, 0.25
"""What NCCL reaches of nominal network cards between two hosts, and by which power of their number it falls. The best
of the playbook's range over 2 to 64 hosts is fitted by 0.7 and 0.1 (mean error 7 %), its means by 0.55 and 0.5 with
latencies of 12 and 30 us (14 %): a quiet and a shared network. Steps that were trained there, which sum many calls of
many ranks, lie between (0.5 and 0.25, docs/accuracy.md)."""
RING_STEP_S, NETWORK_STEP_S = 6e-6, 20e-6
"""A ring's step inside a host and between hosts, fitted with the above: over 512 ranks latency is most of a gather."""
RING_SOURCE = f"of a ring's step through several hosts: {PLAYBOOK}"
OVERHEAD_SOURCE = "NVIDIA/nccl src/graph/tuning.cc: base latency of a ring; tables of hosts have theirs in them"


@dataclass(frozen=True, slots=True)
class Host:
    """A kind of host: how many devices it has at most, the links inside, and the network each host has.

    socket: devices that share one root of the PCIe tree, where that matters; `inner` then joins the devices of a
    socket and `across` the sockets.
    """

    device: str
    devices: int
    inner: Link
    network: Link
    sources: Sources
    socket: int = 0
    across: Link | None = None


def _inside(table: str, bandwidth: float = 0.0) -> Link:
    return Link(RING_STEP_S, bandwidth or float(link_table(table)["bandwidth"]), measured=table)


def _network(bandwidth: float, cards: int, reached: float = QUIET, taper: float = TAPER, sent: float = 1.0) -> Link:
    efficiency = (*((kind, reached) for kind in _KINDS), *((("send", sent),) if sent < 1.0 else ()))
    return Link(NETWORK_STEP_S, bandwidth, cards, efficiency=efficiency, taper=taper)


def _sources(inside: str, table: str, network: str, reached: str = PLAYBOOK) -> Sources:
    measured = link_table(table)["source"]
    return (
        ("host.bandwidth", inside),
        ("host.latency_s", RING_SOURCE),
        ("host.efficiency", f"{measured} ({table})"),
        ("pod.bandwidth", network),
        ("pod.latency_s", PLAYBOOK),
        ("pod.efficiency", f"{reached}; others nominal ({_ASSUMED})"),
        ("pod.taper", f"{PLAYBOOK}; the means of that shared cluster have 0.5"),
        ("overhead_s", OVERHEAD_SOURCE),
    )


_LIKE_H100 = f"{_ASSUMED}: as measured between hosts of H100 ({PLAYBOOK})"
_NO_NETWORK = f"{_ASSUMED}: 100 Gbit/s Ethernet, one card per host"
_LIKE_PCIE = f"{_PCIE}; collectives as measured on RTX PRO 6000 at gen 5 ({_ASSUMED})"


def _nvlink(device: str, devices: int, table: str, network: Link, inside: str, between: str, reached: str) -> Host:
    return Host(device, devices, _inside(table), network, _sources(inside, table, between, reached))


def _card(device: str, bandwidth: float, note: str = "") -> Host:
    """A host of up to 8 PCIe cards."""
    table = "RTX-PRO-6000-Server"
    return Host(
        device,
        8,
        _inside(table, bandwidth),
        _network(12.5e9, 1),
        _sources(note or _LIKE_PCIE, table, _NO_NETWORK, _LIKE_H100),
    )


_ETHERNET = _network(12.5e9, 1)
_TURING_NETWORK, _25_GBIT = _network(25e9 / 8, 1, 0.915, 0.0), f"{_ASSUMED}: 25 Gbit/s Ethernet, one card per host"
_PCIE_3 = "PCIe gen 3 x16: 16 GB/s each way"
_PCIE_SWITCH = "MooreThreads/SimuMax@3005b17 configs/system/a100_pcie.json: measured among 2, 4 and 8"

HOSTS: dict[str, Host] = {
    host.device: host
    for host in (
        _nvlink(
            "A100-SXM-80GB", 8, "A100-SXM-80GB", _network(25e9, 8),
            f"{_ML_ENG}: NVLink3 300 GB/s each way", "SC21 (Selene): 8 x HDR 200 Gbit/s per host", _LIKE_H100,
        ),
        _nvlink(
            "A100-SXM-40GB", 8, "A100-SXM-80GB", _network(12.5e9, 4, 0.22, 0.0),
            f"{_ML_ENG}: NVLink3 300 GB/s each way", f"{_ML_ENG}: AWS p4d.24xlarge, 4 x 100 Gbit/s",
            f"{_MIST}/template-a100-sxm4-40gb.yaml: 10.7 GB/s between 2 and between 4 hosts of 8",
        ),
        _nvlink(
            "H100-SXM-80GB", 8, "H100-SXM-80GB", _network(50e9, 8),
            f"{_ML_ENG}: NVLink4 450 GB/s each way", f"{_MLPERF}: 8 x 400 Gbit/s", PLAYBOOK,
        ),
        _nvlink(
            "H100-SXM-96GB", 8, "H100-SXM-80GB", _network(50e9, 8),
            f"{_ML_ENG}: NVLink4 450 GB/s each way", f"{_ASSUMED}: as hosts of H100 of 80 GB", _LIKE_H100,
        ),
        _nvlink(
            "H200-SXM-141GB", 8, "H200-SXM-141GB", _network(50e9, 8),
            f"{_ML_ENG}: NVLink4 450 GB/s each way", f"{_MLPERF}: 8 x 400 Gbit/s", _LIKE_H100,
        ),
        _nvlink(
            "B200-SXM", 8, "B200-SXM", _network(50e9, 8),
            f"{_ML_ENG}: NVLink5 900 GB/s each way",
            "rillor.com, ConnectX-7 vs ConnectX-8: HGX B200 ships 8 x 400 Gbit/s", _LIKE_H100,
        ),
        _nvlink(
            "B300-SXM", 8, "B200-SXM", _network(100e9, 8),
            f"{_ML_ENG}: NVLink5 900 GB/s each way", f"{_AIC}: 100 GB/s per GPU between hosts", _LIKE_H100,
        ),
        _nvlink(
            "GB200", 72, "GB200", _network(50e9, 72),
            f"{_ML_ENG}: NVLink5 900 GB/s each way; one NVLink domain of 72, measured among 2 and 4 of one tray",
            f"{_ASSUMED}: one 400 Gbit/s card per device", _LIKE_H100,
        ),
        _nvlink(
            "GB300", 72, "GB200", _network(100e9, 72),
            f"{_AIC}: 900 GB/s each way, racks of 72; collectives as on GB200 ({_ASSUMED})",
            f"{_AIC}: 100 GB/s per GPU between racks", _LIKE_H100,
        ),
        _nvlink(
            "GH200-96GB", 4, "GH200-96GB", _network(25e9, 4, sent=0.92),
            f"{_SAILOR}/intra_node_bandwidths.json: 150 GB/s to each of three peers",
            f"{_SAILOR}: 25 GB/s nominal for each GPU",
            f"{_LIKE_H100}; sends {_SAILOR}/multizone_bandwidths_het.json: 22.9 of 25 GB/s",
        ),
        _nvlink(
            "V100-SXM2-16GB", 8, "V100-SXM2-16GB", _network(25e9 / 8, 1, 0.94, 0.0),
            f"{_ML_ENG}: NVLink2 150 GB/s each way, a cube mesh", "AWS announcement of EC2 P3, 2017: 25 Gbit/s",
            f"{_MIST}/template-v100-sxm2-16gb.yaml: 2.94 GB/s between 2 and between 4 hosts of 8",
        ),
        _nvlink(
            "V100-SXM2-32GB", 8, "V100-SXM2-32GB", _network(12.5e9, 1, 0.78, 0.0),
            f"{_ML_ENG}: NVLink2 150 GB/s each way, a cube mesh", "AWS p3dn.24xlarge: 100 Gbit/s per host",
            f"{_MIST}/template-v100-sxm2-32gb.yaml: 9.7 GB/s between 2 and between 4 hosts of 8",
        ),
        _nvlink(
            "MI300X", 8, "H100-SXM-80GB", _network(50e9, 8),
            f"{_ASSUMED}: 7 x 64 GB/s Infinity Fabric, collectives as on H100",
            f"{_ASSUMED}: one 400 Gbit/s card per device", _LIKE_H100,
        ),
        _nvlink(
            "L4", 8, "L4", _network(12.5e9, 1, 0.27, 0.0),
            f"{_AIC}: PCIe, 32 GB/s each way", f"{_ASSUMED}: GCP g2-standard-96, 100 Gbit/s",
            f"{_MIST}/template-l4.yaml: 3.3 GB/s between 2 hosts of 8",
        ),
        _nvlink(
            "RTX-3090", 8, "RTX-3090", _ETHERNET,
            f"{_SAILOR}/intra_node_bandwidths.json: pairs joined by NVLink, pairs by PCIe", _NO_NETWORK, _LIKE_H100,
        ),
        _nvlink(
            "Titan-RTX", 8, "Titan-RTX", _TURING_NETWORK, _PCIE_3, _25_GBIT,
            f"{_SAILOR}/multizone_bandwidths_het.json: 2.86 GB/s between hosts",
        ),
        _nvlink(
            "RTX-2080-Ti", 8, "RTX-2080-Ti", _TURING_NETWORK, _PCIE_3, _25_GBIT,
            f"{_SAILOR}/multizone_bandwidths_het.json: 2.86 GB/s between hosts",
        ),
        Host(
            "A100-PCIe-80GB", 8, _inside("A100-PCIe-80GB"), _network(25e9, 1),
            (
                *_sources(
                    f"{_PCIE_SWITCH}: 30 GB/s", "A100-PCIe-80GB", f"{_ASSUMED}: 200 Gbit/s per host", _LIKE_H100
                ),
                ("socket.bandwidth", f"{_PCIE_SWITCH}: 30 GB/s, about 0.69 of it among 2 and 4"),
                ("socket.latency_s", _PCIE_SWITCH),
                ("socket.efficiency", _PCIE_SWITCH),
            ),
            socket=4,
            across=Link(
                10e-6, 16e9,
                efficiency=(("all_reduce", 0.78), ("all_gather", 0.9), ("reduce_scatter", 0.82), ("all_to_all", 0.52)),
            ),
        ),
        _card("RTX-PRO-6000-Server", 64e9, f"{_AIC}: PCIe, 64 GB/s each way"),
        _card("H100-PCIe-80GB", 64e9),
        _card("L40S", 32e9),
        _card("A10G", 32e9),
        _card("A30", 32e9),
        _card("RTX-4090", 32e9, f"{_LIKE_PCIE}; the driver of this card has no peer-to-peer, which may halve it"),
        _card("RTX-5090", 64e9, f"{_LIKE_PCIE}; the driver of this card has no peer-to-peer, which may halve it"),
    )
}  # fmt: skip

ALIASES: dict[str, str] = {
    "a100": "A100-SXM-80GB",
    "a100-80gb": "A100-SXM-80GB",
    "a100-40gb": "A100-SXM-40GB",
    "a100-pcie": "A100-PCIe-80GB",
    "h100": "H100-SXM-80GB",
    "h100-96gb": "H100-SXM-96GB",
    "h100-pcie": "H100-PCIe-80GB",
    "h200": "H200-SXM-141GB",
    "gh200": "GH200-96GB",
    "b200": "B200-SXM",
    "b300": "B300-SXM",
    "gb200": "GB200",
    "gb300": "GB300",
    "v100": "V100-SXM2-16GB",
    "v100-16gb": "V100-SXM2-16GB",
    "v100-32gb": "V100-SXM2-32GB",
    "l4": "L4",
    "l40s": "L40S",
    "a10g": "A10G",
    "a30": "A30",
    "3090": "RTX-3090",
    "4090": "RTX-4090",
    "5090": "RTX-5090",
    "rtx-3090": "RTX-3090",
    "rtx-4090": "RTX-4090",
    "rtx-5090": "RTX-5090",
    "titan-rtx": "Titan-RTX",
    "2080ti": "RTX-2080-Ti",
    "rtx-2080-ti": "RTX-2080-Ti",
    "rtx-pro-6000": "RTX-PRO-6000-Server",
    "mi300x": "MI300X",
}
"""Short names of devices, as in `h100:8`."""
