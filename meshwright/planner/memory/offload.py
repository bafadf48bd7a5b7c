"""Offloading of optimizer state and weights to the host, under the pin `offload=auto`.

On one device a few fractions are tried where memory makes a step slower, and the fastest that fits is taken. On several
devices all of it is tried where nothing else fits. The bandwidth to the host must be known.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import ITEM_BYTES, Program
from meshwright.cluster import Cluster, Device
from meshwright.cost.host_link import copies_of, state_copies
from meshwright.pins.offload import Offload
from meshwright.planner.effort import NEAR
from meshwright.price.hosted import no_link
from meshwright.price.parameter import Setting

OFFLOADING = ("optimizer", "weights")
"""Pins that are tried where nothing else fits on several devices, in this order."""


def check_may_offload(cluster: Cluster) -> None:
    """Raises PlanError where `offload=auto` is impossible."""
    if not can_offload(cluster):
        raise no_link(next(one for one in cluster.devices if not has_host_link(one)))


def can_offload(cluster: Cluster) -> bool:
    """Whether `offload=auto` is possible."""
    return all(map(has_host_link, cluster.devices))


def has_host_link(device: Device) -> bool:
    """A CPU's memory is the host's: nothing is gained there."""
    return (copies_of(device) if device.kind == "cpu" else state_copies(device)) is not None


def tried(kind: str, missing: int, held: int) -> list[Offload]:
    """The fractions to try on one device.

    missing: bytes above the budget with everything kept.
    held: bytes that the host could hold.
    """
    enough = min(1.0, (1 + NEAR) * missing / max(1, held))
    fractions = {1.0, 1 / 2, enough, *([enough / 2] if kind == "optimizer" else [])}
    return [Offload(kind, fraction) for fraction in sorted(fractions) if fraction > 0]


def offloading(setting: Setting, program: Program, cluster: Cluster, offload: Offload) -> Setting:
    """The setting with this offloading. Raises PlanError where a device's link to its host is not known."""
    for device in cluster.devices:
        if state_copies(device) is None:
            raise no_link(device)
    return replace(setting, offload=offload.kind, offloaded=offloaded_names(program, offload.fraction))


def offloaded_names(program: Program, fraction: float) -> frozenset[str] | None:
    """Parameters with about this fraction of all bytes; None for all.

    A parameter of a graph is offloaded in all its segments or in none, so that planning does not grow with depth.
    Parameters are taken in order as long as that comes nearer to the fraction.
    """
    if fraction >= 1:
        return None
    places: dict[tuple[int, int], list[str]] = {}
    seen: set[str] = set()
    for segment in program.segments:
        for place, name in enumerate(segment.params):
            if name not in seen:
                seen.add(name)
                places.setdefault((segment.graph, place), []).append(name)
    sizes = {parameter.name: _bytes(parameter.type.sizes, parameter.type.dtype) for parameter in program.parameters}
    wanted, taken, found = fraction * sum(sizes.values()), 0, set[str]()
    for names in places.values():
        size = sum(sizes[name] for name in names)
        if taken + size / 2 <= wanted:
            taken += size
            found.update(names)
    return frozenset(found)


def _bytes(sizes: tuple[int, ...], dtype: str) -> int:
    found = ITEM_BYTES[dtype]
    for size in sizes:
        found *= size
    return found
