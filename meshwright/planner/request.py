"""PlanRequest: the model, the cluster and the constraints of one search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.pins.check import MOST_AXES
from meshwright.plan.validate import preset_named
from meshwright.planner.effort import EFFORTS, SIMPLER_WITHIN, Effort
from meshwright.price.parameter import Setting

MOST_DEVICES = 65_536
"""A cluster of so many was planned for in 43 CPU seconds (`docs/limits.md`); of more, the time is not bounded."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be planned, and how much may be searched.

    program: captured in the dtype it computes in.
    model: the name by which a Plan refers to it.
    memory_bytes: limit per device; None is the device's own, less `headroom`.
    setting: optimizer, precision, compiled or not, what is offloaded to the host.
    fit: refuse where nothing fits; otherwise return the fastest plan of the most micro-batches.
    recompute: activations may be recomputed in backward where memory binds.
    simpler_within: the simplest of all plans within this part of the fastest step is taken.
    effort: limits of the search, in work.
    gap: the search ends once its incumbent is proven to be within this part of the fastest plan.
    headroom: part of each device that is left free where no limit is given.
    """

    program: Program
    cluster: Cluster
    model: str = ""
    memory_bytes: int | None = None
    setting: Setting = field(default_factory=Setting)
    pins: tuple[str, ...] = ()
    max_axes: int = MOST_AXES
    fit: bool = True
    recompute: bool = True
    simpler_within: float = SIMPLER_WITHIN
    effort: Effort = EFFORTS["default"]
    gap: float = 0.0
    headroom: float = 0.0

    @property
    def budget_bytes(self) -> int:
        """Bytes of each device that a plan of one stage may fill."""
        device = self.cluster.mesh((self.cluster.device_count,)).device
        return device.limit_bytes(self.memory_bytes, self.headroom)

    @property
    def plan_fields(self) -> dict[str, Any]:
        """Fields of a Plan that the request sets, not the search."""
        return {
            "model": self.model,
            "memory_bytes": self.memory_bytes,
            "headroom": self.headroom,
            "pins": self.pins,
            "cluster": self._cluster_name(),
            "compile": self.setting.compile,
        }

    def _cluster_name(self) -> str:
        """The name by which a Plan refers to the cluster: marked where it is a preset's, whose devices are others."""
        preset = preset_named(self.cluster.name)
        changed = preset is not None and preset.device_names() != self.cluster.device_names()
        return f"{self.cluster.name} (changed)" if changed else self.cluster.name
