"""Optimizer state and weights on the host: which fractions are looked at, and for which devices."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.cost.host_link import state_copies
from meshwright.pins.offload import Offload
from meshwright.price.hosted import no_link
from meshwright.price.offloaded import offloaded_names
from meshwright.price.parameter import Setting


def offloading(setting: Setting, program: Program, cluster: Cluster, offload: Offload) -> Setting:
    """The setting with so much on the host. Raises PlanError where a device's link to its host is not known."""
    for device in cluster.devices:
        if state_copies(device) is None:
            raise no_link(device)
    return replace(setting, offload=offload.kind, offloaded=offloaded_names(program, offload.fraction))
