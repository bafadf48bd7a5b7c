"""A note for small models: how fast one of the plan's devices is by itself."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError
from meshwright.explain.figures import mfu
from meshwright.plan import Plan
from meshwright.plan.units import show_seconds
from meshwright.planner.infeasible.estimate import training_state_bytes
from meshwright.planner.one_device import one_device_cluster, one_device_search
from meshwright.planner.request import PlanRequest
from meshwright.price.parameter import Setting

USED = 0.25
"""A note is given below this part of linear speed-up over one device."""
REACHED = 0.6
"""MFU that no GPU exceeds in a step: where one device would have to, it is not searched."""


def single_device_note(plan: Plan, program: Program, cluster: Cluster) -> str:
    """A line where one GPU is as fast as all, or little slower; nothing otherwise, and under pins."""
    count, device = plan.world_size, cluster.devices[0]
    if count == 1 or device.kind == "cpu" or len(cluster.devices) > 1 or plan.pins:
        return ""
    setting = Setting(plan.optimizer, plan.precision, compile=plan.compile)
    fits = training_state_bytes(program, setting) <= device.limit_bytes(plan.memory_bytes, plan.headroom)
    if not fits or mfu(plan, program) > USED * REACHED:
        return ""
    single = one_device_cluster(device)
    request = PlanRequest(program, single, memory_bytes=plan.memory_bytes, setting=setting, headroom=plan.headroom)
    try:
        one_s = one_device_search(request, ()).predicted.step_s
    except PlanError:
        return ""
    gained, takes = one_s / plan.predicted.step_s, show_seconds(one_s)
    if gained <= 1:
        return f"one {device.name} is enough: it takes {takes} by itself, no longer than these {count}"
    if gained >= USED * count:
        return ""
    return f"these {count} are {gained:.1f}x as fast as one {device.name} ({takes}); a larger batch uses them better"
