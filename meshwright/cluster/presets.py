"""Named clusters, every figure with its source."""

from __future__ import annotations

from meshwright.cluster.device import Achievable, Device
from meshwright.cluster.topology import Cluster, Group, Link, Member
from meshwright.errors import ClusterError

_GIB = 1 << 30

_CPU = Device("cpu", "cpu", (("float32", 5e10), ("bfloat16", 2.5e10)), 8 * _GIB, 1e10, 5e-6, _GIB // 4)
_H100 = Device(
    "H100-SXM-80GB",
    "cuda",
    (("float8", 1979e12), ("bfloat16", 989e12), ("float16", 989e12), ("tf32", 494.5e12), ("float32", 67e12)),
    81559 << 20,
    3.35e12,
    4e-6,
    2 * _GIB,
    (Achievable("matmul", 0.803), Achievable("memory", 0.9)),
)


def preset(name: str, count: int = 1) -> Cluster:
    """The preset of this name with `count` hosts (for `local`: processes)."""
    if name == "local":
        return _local(count)
    if name == "dgx-h100":
        return _hosts(name, _H100, 8, Link(3e-6, 450e9), count, Link(8e-6, 50e9, 8))
    raise ClusterError(f"cluster preset {name!r}", "one of local, dgx-h100", "or give the path of a TOML file")


def _local(count: int) -> Cluster:
    return Cluster("local", "gloo", (_CPU,), Group("host", Link(2e-5, 2e9, shared=True), (Member("cpu", count),)), 1e-4)


def _hosts(name: str, device: Device, per_host: int, inner: Link, hosts: int, outer: Link) -> Cluster:
    host = Group("host", inner, (Member(device.name, per_host),))
    root = host if hosts == 1 else Group("pod", outer, (Member(host, hosts),))
    return Cluster(f"{name}:{hosts}", "nccl", (device,), root, 5e-6)
