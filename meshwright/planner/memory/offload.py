"""Offloading of optimizer state and weights to the host, under the pin `offload=auto`.

On one device a few fractions are tried where memory makes a step slower, and the fastest that fits is taken. On several
devices all of it is tried where nothing else fits. The bandwidth to the host must be known.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.cluster import Cluster, Device
from meshwright.cost.host_link import copies_of, state_copies
from meshwright.pins.offload import Offload
from meshwright.planner.effort import NEAR
from meshwright.price.hosted import no_link
from meshwright.price.offloaded import offloaded_names
from meshwright.price.parameter import Setting

OFFLOADING = ("optimizer", "weights")
"""Pins that are tried where nothing else fits on several devices, in this order."""


def check_may_offload(cluster: Cluster) -> None:
    """Raises PlanError where `offload=auto` is impossible."""
    if not can_offload(cluster):
        raise no_link(next(one for one in cluster.devices if not has_host_link(one)))


def can_offload(cluster: Cluster) -> bool:
    """Whether `offload=auto` is possible."""
    return all(map(has_host_link, cluster.devices))


def has_host_link(device: Device) -> bool:
    """A CPU's memory is the host's: nothing is gained there."""
    return (copies_of(device) if device.kind == "cpu" else state_copies(device)) is not None


def tried(kind: str, missing: int, held: int) -> list[Offload]:
    """The fractions to try on one device.

    missing: bytes above the budget with everything kept.
    held: bytes that the host could hold.
    """
    enough = min(1.0, (1 + NEAR) * missing / max(1, held))
    fractions = {1.0, 1 / 2, enough, *([enough / 2] if kind == "optimizer" else [])}
    return [Offload(kind, fraction) for fraction in sorted(fractions) if fraction > 0]


def offloading(setting: Setting, program: Program, cluster: Cluster, offload: Offload) -> Setting:
    """The setting with this offloading. Raises PlanError where a device's link to its host is not known."""
    for device in cluster.devices:
        if state_copies(device) is None:
            raise no_link(device)
    return replace(setting, offload=offload.kind, offloaded=offloaded_names(program, offload.fraction))
