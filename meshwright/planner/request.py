"""PlanRequest: everything that a planner is asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.pins.check import MOST_AXES
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
    setting: optimizer, precision, compiled or not, what waits on the host.
    pins: as text.
    max_axes: of a mesh.
    fit: refuse where nothing fits; otherwise the fastest of the most micro-batches is the answer.
    recompute: where memory binds, activations may be recomputed in backward.
    stage_method: how pipelines' stages are searched for.
    simpler_within: of plans whose steps differ by no more than this part the simplest is taken.
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
    stage_method: str = "auto"
    simpler_within: float = SIMPLER_WITHIN
    effort: Effort = EFFORTS["default"]
    gap: float = 0.0
    headroom: float = 0.0

    @property
    def budget_bytes(self) -> int:
        """What a plan of one stage may fill of each device."""
        device = self.cluster.mesh((self.cluster.device_count,)).device
        return device.limit_bytes(self.memory_bytes, self.headroom)
