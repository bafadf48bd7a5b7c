"""When nothing fits: by how much, and what would: the smallest budget found here, the smallest cluster of the kind."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import MeshwrightError, PlanError, counted
from meshwright.solve.intra.chain import least_bytes
from meshwright.solve.least import Smallest
from meshwright.solve.search import Candidate

MOST_DEVICES = 1 << 14


def does_not_fit(cluster: Cluster, budget: int, least: Smallest, tight: Callable[[Cluster], Candidate]) -> PlanError:
    """least: the fewest bytes found to do. tight: of a larger cluster, the mesh that leaves most room."""
    device = cluster.mesh((cluster.device_count,)).device
    larger = _smallest_that_fits(cluster, budget, tight)
    todo = [f"use {larger.name} ({larger.device_count} devices)"] if larger else []
    todo += ["raise the memory limit"] if least.bytes <= device.usable_bytes else []
    return PlanError(
        f"no plan fits in {budget:,} bytes on each of {counted(cluster.device_count, 'device')} ({device.name})",
        least.beside(budget),
        ", ".join([*todo, "or make the batch smaller"]) if todo else "make the batch smaller",
    )


def least_of(candidate: Candidate) -> Smallest:
    """Fewest samples at a time, or as many as there are: the ends are tried."""
    numbers = {candidate.microbatches[0], candidate.microbatches[-1]}
    how = "weights and values cut as far as they go"
    return min(Smallest(least_bytes(candidate.frontier(number)), how, number) for number in sorted(numbers))


def _smallest_that_fits(cluster: Cluster, budget: int, tight: Callable[[Cluster], Candidate]) -> Cluster | None:
    """Clusters `kind:n` with n doubled until one fits, then halved between."""
    kind, _, count = cluster.name.rpartition(":")
    if not kind or not count.isdigit():
        return None

    def fitting(n: int) -> Cluster | None:
        larger = load_cluster(f"{kind}:{n}")
        return larger if least_of(tight(larger)).bytes <= budget else None

    low = int(count)
    try:
        high = 2 * low
        while (found := fitting(high)) is None:
            low, high = high, 2 * high
            if high * cluster.device_count > MOST_DEVICES * int(count):
                return None
        while high - low > max(1, low // 8):
            middle = (low + high) // 2
            better = fitting(middle)
            low, high, found = (low, middle, better) if better else (middle, high, found)
    except MeshwrightError:
        return None
    return found
