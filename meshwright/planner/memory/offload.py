"""Optimizer state and weights on the host, where the pin `offload=auto` leaves that to the planner.

On one device a few fractions are tried wherever memory makes a step slower, the fastest that fits is taken. On several,
all of it is tried where nothing else fits. Only devices whose link to the host is known are planned so.
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
    """The planner chooses what the host holds where it knows what copies cost."""
    if not can_offload(cluster):
        raise no_link(next(one for one in cluster.devices if not has_host_link(one)))


def can_offload(cluster: Cluster) -> bool:
    """Whether `offload=auto` is possible."""
    return all(map(has_host_link, cluster.devices))


def has_host_link(device: Device) -> bool:
    """A CPU's memory is the host's: nothing is gained there."""
    return (copies_of(device) if device.kind == "cpu" else state_copies(device)) is not None


def tried(kind: str, missing: int, held: int) -> list[Offload]:
    """What is tried on one device, of so many bytes that the host could hold. missing: so many would do to keep all."""
    enough = min(1.0, (1 + NEAR) * missing / max(1, held))
    fractions = {1.0, 1 / 2, enough, *([enough / 2] if kind == "optimizer" else [])}
    return [Offload(kind, fraction) for fraction in sorted(fractions) if fraction > 0]


def offloading(setting: Setting, program: Program, cluster: Cluster, offload: Offload) -> Setting:
    """The setting with so much on the host. Raises PlanError where a device's link to its host is not known."""
    for device in cluster.devices:
        if state_copies(device) is None:
            raise no_link(device)
    return replace(setting, offload=offload.kind, offloaded=offloaded_names(program, offload.fraction))
