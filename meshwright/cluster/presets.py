"""Named clusters. Links and devices carry their sources; `Cluster.sources` lists them all.

A preset name with a count, `dgx-h100:32`, is that many hosts on one network; `local:3` is three processes. A device's
name with a count, `h100:8`, is that many devices in one host; `a100-40gb:4x8` is four hosts of eight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

from meshwright.cluster.device_table import GPUS, SourcedDevice, local_cpu
from meshwright.cluster.hosts import ALIASES, HOSTS, Host
from meshwright.cluster.origins import FROM, origin
from meshwright.cluster.topology import Cluster
from meshwright.cluster.tree import Group, Link, Member
from meshwright.errors import ClusterError

_LOOPBACK = (("all_reduce", 0.85), ("all_gather", 0.6), ("reduce_scatter", 0.55), ("all_to_all", 1.0))
NCCL_OVERHEAD_S = 8.4e-6

_HOSTS = {
    "p3.16xlarge": "V100-SXM2-16GB",
    "dgx-a100": "A100-SXM-80GB",
    "dgx-h100": "H100-SXM-80GB",
    "dgx-h200": "H200-SXM-141GB",
    "hgx-b200": "B200-SXM",
    "gb200-nvl72": "GB200",
}


def preset(name: str, count: int = 1) -> Cluster:
    """The preset of this name with `count` hosts (for `local`: processes)."""
    if name not in PRESETS:
        close = get_close_matches(name, [*PRESETS, *ALIASES], n=2)
        meant = f"did you mean {' or '.join(close)}? Or " if close else ""
        raise ClusterError(
            f"cluster preset {name!r}",
            f"one of {', '.join(PRESETS)}, or a device with a count: {', '.join(f'{alias}:8' for alias in ALIASES)}",
            f"{meant}give the path of a .toml file",
        )
    return PRESETS[name](count)


def devices_of(name: str, hosts: int, each: int) -> Cluster:
    """`hosts` hosts with `each` devices of the type that `name` stands for."""
    kind = HOSTS[ALIASES[name]]
    if each > kind.devices:
        whole = each // kind.devices
        raise ClusterError(
            f"cluster {name}:{f'{hosts}x' if hosts > 1 else ''}{each}: {each} devices in a host",
            f"at most {kind.devices} of {kind.device}",
            f"write {name}:{max(2, hosts * whole)}x{kind.devices} for several hosts",
        )
    return _cluster(f"{name}:{f'{hosts}x' if hosts > 1 else ''}{each}", kind, hosts, each)


def _local(processes: int) -> Cluster:
    measured = "measured on a busy 2-core Xeon machine, gloo over loopback, torch 2.13, best of 15 at 4 to 16 MiB"
    figures = ("host.bandwidth", "host.latency_s", "host.efficiency", "overhead_s")
    links = tuple((figure, measured) for figure in figures)
    cpu = local_cpu(processes)
    host = Group("host", Link(5e-5, 4e9, shared=True, efficiency=_LOOPBACK), (Member("cpu", processes),))
    return Cluster(f"local:{processes}", "gloo", (cpu.device,), host, 1e-4, _all_sources(cpu, links))


def _hosts(name: str) -> Callable[[int], Cluster]:
    def build(count: int) -> Cluster:
        kind = HOSTS[_HOSTS[name]]
        return _cluster(f"{name}:{count}", kind, count, kind.devices)

    return build


def _cluster(name: str, kind: Host, hosts: int, each: int) -> Cluster:
    gpu = GPUS[kind.device]
    host = _host(kind, each)
    if hosts > 1 and kind.across and host.level == kind.group:
        host = Group("host", kind.across, (Member(host),))
    cards = max(1, kind.network.count * each // kind.devices)  # a smaller host has fewer
    root = host if hosts == 1 else Group("pod", replace(kind.network, count=cards), (Member(host, hosts),))
    return Cluster(name, "nccl", (gpu.device,), root, NCCL_OVERHEAD_S, _all_sources(gpu, kind.sources))


def _host(kind: Host, each: int) -> Group:
    """Its devices, by sockets or bridges where they sit on several."""
    if not kind.across or each <= kind.socket:
        return Group(kind.group if kind.across else "host", kind.inner, (Member(kind.device, each),))
    whole, rest = divmod(each, kind.socket)
    groups = [Member(Group(kind.group, kind.inner, (Member(kind.device, kind.socket),)), whole)]
    if rest:
        groups.append(Member(Group(kind.group, kind.inner, (Member(kind.device, rest),))))
    return Group("host", kind.across, tuple(groups))


def _all_sources(device: SourcedDevice, links: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    name, profile = device.device.name, device.device.profile
    own = ((f"{name}.{field}", FROM.join([source, *origin(profile, field)[1:]])) for field, source in device.sources)
    return (*own, *links)


PRESETS: dict[str, Callable[[int], Cluster]] = {"local": _local} | {name: _hosts(name) for name in _HOSTS}
