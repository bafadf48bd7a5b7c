"""Named clusters. Links and devices carry their sources; `Cluster.sources` lists them all.

A preset name with a count, `dgx-h100:32`, is that many hosts on one network; `local:3` is three processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshwright.cluster.device_table import GPUS, SourcedDevice, local_cpu
from meshwright.cluster.topology import Cluster
from meshwright.cluster.tree import Group, Link, Member
from meshwright.errors import ClusterError

_ML_ENG = "stas00/ml-engineering@744d01e18b79 network/README.md"
_MLPERF = "mlcommons/training_results_v4.0@62f111b7690f, NVIDIA system description"
_NCCL = "NVIDIA/nccl src/graph/tuning.cc: ring, simple protocol"
_PLAYBOOK = "HF Ultra-Scale Playbook, collectives of 256 MB on 8 and 16 H100"
_ASSUMED = "assumption"

# What NCCL reaches of the nominal rate. In a host: bus bandwidth over 450 GB/s; all-reduce is done by the switch
# (NVLS), which is why it is closer to nominal than the rest. Between two hosts: what each sends (the tensor, for an
# all-reduce; see `cost`) over its 400 GB/s: 0.45 to 0.48 for the three kinds there are rows of.
_IN_HOST = (("all_reduce", 0.97), ("all_gather", 0.56), ("reduce_scatter", 0.56), ("all_to_all", 0.56))
_NETWORK = tuple((kind, 0.47) for kind, _ in _IN_HOST)

_LOOPBACK = (("all_reduce", 0.85), ("all_gather", 0.6), ("reduce_scatter", 0.55), ("all_to_all", 1.0))


@dataclass(frozen=True, slots=True)
class _Host:
    """A kind of host: devices, the links inside, and the network each host has."""

    device: str
    devices: int
    inner: Link
    network: Link
    sources: tuple[tuple[str, str], ...]


def _sources(bandwidth: str, network: str, efficiency: str) -> tuple[tuple[str, str], ...]:
    others = f"{_ASSUMED}: all_to_all as all_gather, broadcast and send nominal"
    return (
        ("host.bandwidth", bandwidth),
        ("host.latency_s", _NCCL),
        ("host.efficiency", f"{efficiency}; {others}"),
        ("pod.bandwidth", network),
        ("pod.latency_s", _NCCL),
        ("pod.efficiency", f"{efficiency}; {others}"),
        ("pod.taper", f"{_ASSUMED}: none, as on a quiet network; the mean of a busy cluster has 0.6 ({_PLAYBOOK})"),
        ("overhead_s", f"{_NCCL}, base latency"),
    )


_LIKE_H100 = f"{_ASSUMED}: as measured on H100 ({_PLAYBOOK})"

_HOSTS: dict[str, _Host] = {
    "p3.16xlarge": _Host(
        "V100-SXM2-16GB",
        8,
        Link(3.4e-6, 150e9),
        Link(9.6e-6, 25e9 / 8),
        _sources(
            f"{_ML_ENG}: NVLink2 150 GB/s each way, as if all pairs had it (a cube mesh: assumption)",
            "AWS announcement of EC2 P3, 2017: 25 Gbit/s per instance",
            f"{_ASSUMED}: nominal",
        ),
    ),
    "dgx-a100": _Host(
        "A100-SXM-80GB",
        8,
        Link(3.4e-6, 300e9, efficiency=tuple((kind, 0.78) for kind, _ in _IN_HOST)),
        Link(9.6e-6, 25e9, 8, efficiency=_NETWORK),
        _sources(
            f"{_ML_ENG}: NVLink3 300 GB/s each way",
            "SC21 (Selene): 8 x HDR 200 Gbit/s per host",
            "NVIDIA/nccl src/graph/tuning.cc: 235 GB/s on A100 in a host; network as measured on H100 (assumption)",
        ),
    ),
    "dgx-h100": _Host(
        "H100-SXM-80GB",
        8,
        Link(3.4e-6, 450e9, efficiency=_IN_HOST),
        Link(9.6e-6, 50e9, 8, efficiency=_NETWORK),
        _sources(f"{_ML_ENG}: NVLink4 450 GB/s each way", f"{_MLPERF}: 8 x 400 Gbit/s", _PLAYBOOK),
    ),
    "dgx-h200": _Host(
        "H200-SXM-141GB",
        8,
        Link(3.4e-6, 450e9, efficiency=_IN_HOST),
        Link(9.6e-6, 50e9, 8, efficiency=_NETWORK),
        _sources(f"{_ML_ENG}: NVLink4 450 GB/s each way", f"{_MLPERF}: 8 x 400 Gbit/s", _LIKE_H100),
    ),
    "hgx-b200": _Host(
        "B200-SXM",
        8,
        Link(3.4e-6, 900e9, efficiency=_IN_HOST),
        Link(9.6e-6, 50e9, 8, efficiency=_NETWORK),
        _sources(
            f"{_ML_ENG}: NVLink5 900 GB/s each way",
            "rillor.com, ConnectX-7 vs ConnectX-8: HGX B200 ships 8 x 400 Gbit/s",
            _LIKE_H100,
        ),
    ),
    "gb200-nvl72": _Host(
        "GB200",
        72,
        Link(3.4e-6, 900e9, efficiency=_IN_HOST),
        Link(9.6e-6, 50e9, 72, efficiency=_NETWORK),
        _sources(
            f"{_ML_ENG}: NVLink5 900 GB/s each way; one NVLink domain of 72",
            f"{_ASSUMED}: one 400 Gbit/s card per device",
            _LIKE_H100,
        ),
    ),
}

_NCCL_OVERHEAD_S = 8.4e-6


def preset(name: str, count: int = 1) -> Cluster:
    """The preset of this name with `count` hosts (for `local`: processes)."""
    if name not in PRESETS:
        raise ClusterError(
            f"cluster preset {name!r}", f"one of {', '.join(PRESETS)}", "or give the path of a .toml file"
        )
    return PRESETS[name](count)


def _local(processes: int) -> Cluster:
    measured = "measured on a busy 2-core Xeon machine, gloo over loopback, torch 2.13, best of 15 at 4 to 16 MiB"
    figures = ("host.bandwidth", "host.latency_s", "host.efficiency", "overhead_s")
    links = tuple((figure, measured) for figure in figures)
    cpu = local_cpu(processes)
    host = Group("host", Link(5e-5, 4e9, shared=True, efficiency=_LOOPBACK), (Member("cpu", processes),))
    return Cluster(f"local:{processes}", "gloo", (cpu.device,), host, 1e-4, _all_sources(cpu, links))


def _hosts(name: str) -> Callable[[int], Cluster]:
    def build(count: int) -> Cluster:
        kind = _HOSTS[name]
        gpu = GPUS[kind.device]
        host = Group("host", kind.inner, (Member(kind.device, kind.devices),))
        root = host if count == 1 else Group("pod", kind.network, (Member(host, count),))
        return Cluster(
            f"{name}:{count}", "nccl", (gpu.device,), root, _NCCL_OVERHEAD_S, _all_sources(gpu, kind.sources)
        )

    return build


def _all_sources(device: SourcedDevice, links: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return (*((f"{device.device.name}.{field}", source) for field, source in device.sources), *links)


PRESETS: dict[str, Callable[[int], Cluster]] = {"local": _local} | {name: _hosts(name) for name in _HOSTS}
