"""Costs of offloaded optimizer states and weights: copies between host and device.

The optimizer's update runs on the device. States come to the device in groups, one for each segment, and go back while
the next group is updated (`runtime.weights.hosted`). A weight comes before each segment that computes with it, and its
gradient goes to the host once it is reduced.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.cluster import Device
from meshwright.cost.host_link import state_copies
from meshwright.errors import PlanError
from meshwright.plan import ParameterPlan


class HostedUpdate(NamedTuple):
    """Updates of parameters whose optimizer states are on the host, once a step.

    update_s: on the device.
    fetch_s, put_s: copies to the device and back, during the updates of other groups.
    moved_bytes: on the device meanwhile.
    """

    update_s: float = 0.0
    fetch_s: float = 0.0
    put_s: float = 0.0
    moved_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of many groups, of which the slowest of the three parts hides the others."""
        return max(self.update_s, self.fetch_s, self.put_s)


def link_s(device: Device, moved: int) -> float:
    """Seconds of copying so many bytes between a device and its host."""
    copies = state_copies(device)
    if copies is None:
        raise no_link(device)
    return moved / copies.rate


def no_link(device: Device) -> PlanError:
    return PlanError(
        f"optimizer state or weights on the host of a {device.name}",
        "a device whose profile has a measured host_link",
        "run `meshwright calibrate` on it, or leave offload out",
    )


def hosted_update(plan: ParameterPlan, device: Device, stored: int, states: int, update_s: float) -> HostedUpdate:
    """The update of a parameter with so many bytes stored and so many optimizer states."""
    there, back = (2 + states, 1 + states) if plan.on_host else (states, states)
    return HostedUpdate(update_s, link_s(device, stored * there), link_s(device, stored * back), stored * there)
