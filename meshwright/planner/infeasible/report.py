"""When nothing fits: by how much, and what would: the smallest budget found here, a larger cluster of the kind."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from meshwright.capture.optimizer import STATES
from meshwright.capture.program import ITEM_BYTES, Program
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import MeshwrightError, PlanError, counted
from meshwright.planner.chain.lagrangian import least_bytes
from meshwright.planner.infeasible.min_memory import MemoryNeeded
from meshwright.planner.request import MOST_DEVICES
from meshwright.planner.search.keep_all import Candidate
from meshwright.price.parameter import Setting

Tight = Callable[[Cluster], list[Candidate]]
"""Of a larger cluster, the meshes that leave most room; none where the pins do not allow it."""


TO_HOST = "put optimizer state on the host (--pin offload=auto, in Python pins='offload=auto')"
"""What helps where a link to the host is known."""


def does_not_fit(
    cluster: Cluster,
    budget: int,
    least: MemoryNeeded,
    tight: Tight,
    unit: int,
    headroom: float = 0.0,
    needed_bytes: int = 0,
    hosted: bool = False,
) -> PlanError:
    """least: the fewest bytes found to do. unit: devices come in multiples of it. headroom: part of each device
    that is left free. needed_bytes: that all devices have to have together. hosted: whether the host could hold
    some of that, and was not asked to."""
    free = f", {headroom:.0%} left free: --headroom 0, in Python headroom=0, takes it" if headroom else ""
    device = cluster.mesh((cluster.device_count,)).device
    larger = _larger_that_fits(cluster, budget, tight, unit, needed_bytes)
    todo = [f"use {larger.name} ({larger.device_count} devices do)"] if larger else []
    todo += ["raise the memory limit"] if least.bytes <= device.usable_bytes else []
    todo += [TO_HOST] if hosted else []
    return PlanError(
        f"no plan fits in {budget:,} bytes on each of {counted(cluster.device_count, 'device')} ({device.name}{free})",
        least.against(budget),
        ", ".join([*todo, "or make the batch smaller"]) if todo else "make the batch smaller",
    )


def state_bytes(program: Program, setting: Setting) -> int:
    """Bytes of all parameters with their gradients and optimizer states, each held once, but for what lives on the
    host: no plan of any number of stages holds less on all devices together, however it shards and whatever it
    recomputes."""
    found: dict[str, int] = {}
    for segment in program.segments:
        for value, name in zip(program.graphs[segment.graph].params, segment.params, strict=True):
            away = setting.offload_of(name, value.grad)
            states = 0 if away else STATES[setting.optimizer]
            copies = 0 if away == "weight" else 2 + states if value.grad else 1
            each = ITEM_BYTES[setting.storage_dtype(value.type.dtype)]
            found[name] = copies * each * prod(value.type.sizes)
    return sum(found.values())


def usable_bytes(cluster: Cluster, memory_bytes: int | None, headroom: float = 0.0) -> int:
    """Of all devices together, each within its limit."""
    each = {device.name: device.limit_bytes(memory_bytes, headroom) for device in cluster.devices}
    return sum(each[name] for name in cluster.device_names())


def least_of(candidate: Candidate) -> MemoryNeeded:
    """Fewest samples at a time, or as many as there are: the ends are tried."""
    numbers = {candidate.microbatches[0], candidate.microbatches[-1]}
    how = "weights and values cut as far as they go"
    return min(MemoryNeeded(least_bytes(candidate.shardings(number)), how, number) for number in sorted(numbers))


def _fits(candidate: Candidate, budget: int) -> bool:
    """Whether `least_of` is within the budget; the number that takes fewer bytes mostly is asked first."""
    ends = (candidate.microbatches[-1], candidate.microbatches[0])
    frontiers = (candidate.shardings(number) for number in dict.fromkeys(ends))
    return any(one.least_static() <= budget and least_bytes(one) <= budget for one in frontiers)


def _larger_that_fits(cluster: Cluster, budget: int, tight: Tight, unit: int, needed_bytes: int) -> Cluster | None:
    """Clusters `kind:n` with n doubled until one fits, then halved between. What memory could be saved by making
    values again is not counted: a smaller one may do."""
    kind, _, count = cluster.name.rpartition(":")
    if not kind or not count.isdigit():
        return None
    each = cluster.device_count // int(count)

    def fitting(n: int) -> Cluster | None:
        larger = load_cluster(f"{kind}:{n}")
        if larger.device_count * budget < needed_bytes:
            return None
        return larger if any(_fits(one, budget) for one in tight(larger)) else None

    low = int(count)
    try:
        high = 2 * low
        while (found := fitting(high)) is None:
            low, high = high, 2 * high
            if high * each > MOST_DEVICES:
                return None
        while high - low > 1:
            between = [n for n in range(low + 1, high) if n * each % unit == 0]
            if not between:
                break
            middle = between[len(between) // 2]
            better = fitting(middle)
            low, high, found = (low, middle, better) if better else (middle, high, found)
    except MeshwrightError:
        return None
    return found
