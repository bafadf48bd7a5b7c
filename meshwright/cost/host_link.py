"""The link between a device and its host's memory: what copies take, there and back.

Each way is a lane of its own: what goes one way shares it, first come first served (`simulate`).
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.caches import CACHES
from meshwright.cluster import Device
from meshwright.cluster.profile_load import read_profile


@dataclass(frozen=True, slots=True)
class Copies:
    """Between a device and pinned memory of its host. rate: bytes per second over the link; memory_rate: of the
    device's own memory. call_s: of the host, asking for one copy."""

    rate: float
    memory_rate: float
    call_s: float = 0.0


LAUNCHES = 4
"""What asking for a copy on a stream of its own takes the host, in launches of kernels (`bench/host_link.py`: 28 to 35
microseconds, where a launch takes 7.4)."""


@CACHES.memoized(maxsize=64)
def copies_of(device: Device) -> Copies | None:
    """For activations: as measured; None where the link was not."""
    return _copies(device, "host_link")


def is_assumed(device: Device) -> bool:
    """Whether optimizer states and weights are copied over a link that was not measured on such a device."""
    return device.kind != "cpu" and copies_of(device) is None and state_copies(device) is not None


def _copies(device: Device, key: str) -> Copies | None:
    link = read_profile(device.profile).get(key) if device.profile else None
    rate = device.memory_bandwidth * device.achievable_fraction("memory")
    return Copies(min(link.values()), rate, LAUNCHES * device.launch_s) if link else None


def state_copies(device: Device) -> Copies | None:
    """For optimizer states and weights: as measured, or as of another device on such a bus. A CPU copies within its
    memory, which is read and written."""
    if device.kind == "cpu":
        rate = device.memory_bandwidth * device.achievable_fraction("memory")
        return Copies(rate / 2, rate)
    return copies_of(device) or _copies(device, "assumed_host_link")
