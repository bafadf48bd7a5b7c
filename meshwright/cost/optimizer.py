"""What an optimizer's update costs on a device."""

from __future__ import annotations

from meshwright.capture.optimizer import STATES
from meshwright.cluster import Device
from meshwright.cluster.profile_load import profile_of


def update_s(device: Device, dtype: str, stored: int, states: int) -> tuple[float, float]:
    """(host, device) seconds of one tensor's part of a fused update.

    AdamW was measured; others are taken to move their bytes as fast: the parameter, its gradient and states are read,
    the parameter and states are written.
    """
    host_s, device_s = profile_of(device).update_s("adamw.sharded", dtype, stored)
    return host_s, device_s * (3 + 2 * states) / (3 + 2 * STATES["adamw"])
