"""Texts of the refusals of a memory limit that is too small: what was given, what would do, and what to change."""

from __future__ import annotations

from meshwright.cluster import Cluster, Device
from meshwright.errors import PlanError, counted
from meshwright.pins.stages import PipelinePins
from meshwright.plan.units import show_bytes, show_part
from meshwright.planner.infeasible.min_memory import MemoryNeeded

TO_HOST = "put optimizer state on the host (--pin offload=auto, in Python pins='offload=auto')"
"""Advice where a link to the host is known."""


def left_free(headroom: float) -> str:
    """Beside the name of a device, of which a part is left free."""
    return f", {show_part(headroom)} left free" if headroom else ""


def more_room(headroom: float, least_bytes: int, device: Device) -> str:
    """Advice where headroom is what is lacking. Beside a limit that is given there is none."""
    lacking = headroom and least_bytes <= device.usable_bytes
    return "leave none free (--headroom 0, in Python headroom=0)" if lacking else ""


class NoRoomError(PlanError):
    """A memory limit on one device that no plan fits. least_bytes: the budget that it names, in which one does."""

    def __init__(self, given: str, expected: str, todo: str, least_bytes: int) -> None:
        super().__init__(given, expected, todo)
        self.least_bytes = least_bytes


def refuse_one_stage(
    cluster: Cluster,
    budget: int,
    needed: MemoryNeeded,
    larger: Cluster | None,
    headroom: float = 0.0,
    may_offload: bool = False,
) -> PlanError:
    """The refusal of a cluster on which no mesh has a plan.

    needed: the smallest budget found in which a plan fits.
    larger: a cluster of the same kind on which the model should fit.
    headroom: part of each device that is left free.
    may_offload: the host could hold optimizer states, and no pin speaks of that.
    """
    device = cluster.mesh((cluster.device_count,)).device
    todo = [f"use {larger.name} ({larger.device_count} devices do)"] if larger else []
    raised = more_room(headroom, needed.bytes, device) or "raise the memory limit"
    todo += [raised] if needed.bytes <= device.usable_bytes else []
    todo += [TO_HOST] if may_offload else []
    devices = f"{counted(cluster.device_count, 'device')} ({device.name}{left_free(headroom)})"
    return PlanError(
        f"no plan fits in {budget:,} bytes on each of {devices}",
        needed.against(budget),
        ", ".join([*todo, "or make the batch smaller"]) if todo else "make the batch smaller",
    )


def refuse_method(method: str, budget: int, needed: MemoryNeeded, may_offload: bool = False) -> PlanError:
    """The refusal of a pinned method of activation checkpointing. may_offload: as of `refuse_one_stage`."""
    pin = f"recompute={method}"
    host = f"{TO_HOST} " if may_offload else ""
    return PlanError(
        f"no plan with {pin} fits in {budget:,} bytes ({show_bytes(budget)})",
        needed.against(budget),
        f"raise the limit, drop the pin {pin}{', ' if host else ' '}{host}or make the batch smaller",
    )


def refuse_pipeline(pins: PipelinePins, cluster: Cluster, budget: int, needed: MemoryNeeded | None) -> PlanError:
    """The refusal of pins that ask for a pipeline. needed: None where no pipeline exists in any amount of memory."""
    types = [device.name for device in cluster.devices]
    if needed is None and pins.schedule == "interleaved" and len(types) > 1:
        return PlanError(
            f"no pipeline with {pins.text} on {cluster.name}, whose devices are {' and '.join(types)}",
            "devices of one type: interleaved stages are all alike",
            "ask for another schedule, or use the devices of one type",
        )
    if needed is None:
        return PlanError(
            f"no pipeline with {pins.text} on {cluster.name}, whatever memory there is",
            "pins and a batch that some stages can have",
            "drop a pin or use more devices",
        )
    return PlanError(
        f"no pipeline with {pins.text} fits on {cluster.name} in {budget:,} bytes ({show_bytes(budget)}) per device",
        needed.against(budget),
        "raise the memory limit, drop a pin or use more devices",
    )
