"""Whether a device's prices are those of the clocks that it keeps in long steps."""

from __future__ import annotations

from meshwright.cluster import Device
from meshwright.cluster.profile_load import profile_of


def knows_load(device: Device) -> bool:
    """Whether they were measured on its kind."""
    return profile_of(device).knows_load
