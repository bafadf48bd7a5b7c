"""The meshes that pins allow, and what pins mean on each with a batch to share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from math import prod
from operator import mul

from meshwright.cluster import Cluster, Mesh
from meshwright.cluster.enumerate import meshes, per_host
from meshwright.cutting import check_cut, cut_batch
from meshwright.errors import PlanError, counted
from meshwright.pins.parts import AXES, pin_parts, pinned_mesh, split_pin
from meshwright.pins.pins import FREE, Pins, pin_readings

MANY = 1024
"""On more devices than this, plans of one stage are looked for on meshes of whole hosts alone."""


def allowed_meshes(cluster: Cluster, pins: tuple[str, ...], max_axes: int) -> list[Mesh]:
    """All shapes of the cluster's devices, of more than two axes those that end at the hosts' edges; all where pins
    speak of axes, or the one that a pin names."""
    shape = pinned_mesh(pins)
    if shape is None:
        free = not any(pin_parts(text)[0] in AXES for text in pins)
        if free and cluster.device_count > MANY:
            return _of_hosts(cluster)
        found = meshes(cluster, max_axes=max_axes)
        return [mesh for mesh in found if len(mesh.sizes) <= FREE or _ends_at_hosts(mesh, cluster)] if free else found
    if prod(shape) != cluster.device_count or len(shape) > 4:
        raise PlanError(
            f"pin mesh={'x'.join(map(str, shape))} on {counted(cluster.device_count, 'device')}",
            f"at most four axis sizes whose product is {cluster.device_count}",
            "change the pin or the cluster",
        )
    return [cluster.mesh(shape)]


def _ends_at_hosts(mesh: Mesh, cluster: Cluster) -> bool:
    """Whether no axis has one part inside a host and one between hosts."""
    return per_host(cluster) in accumulate(reversed(mesh.sizes), mul)


def _of_hosts(cluster: Cluster) -> list[Mesh]:
    """Of very many devices: one axis, or two of which the inner one is within a host."""
    total, inner = cluster.device_count, per_host(cluster)
    insides = [n for n in range(1, inner + 1) if inner % n == 0 and total % n == 0 and n < total]
    return [cluster.mesh((total // inside, inside) if inside > 1 else (total,)) for inside in insides]


def readings_on(mesh: Mesh, pins: tuple[str, ...], batch: int) -> list[Pins]:
    """All that the pins may mean there. Refuses what samples are not for."""
    check_microbatches(pins, batch)
    readings = pin_readings(pins, mesh)
    for parsed in readings:
        ways, number = prod(mesh.sizes[axis] for axis in parsed.dp_axes), parsed.microbatches or 1
        if any(samples % ways for samples in cut_batch(batch, number)):
            at_a_time = f"a global batch of {batch}" + (f" in {number} parts" if number > 1 else "")
            least = ways * number
            even = [n for n in (batch // least * least, (batch // least + 1) * least) if n]
            divides = f"a batch that divides evenly, such as {' or '.join(map(str, even))}"
            raise PlanError(f"dp={ways} with {at_a_time}", divides, "change the batch or the pins")
    return readings


def check_microbatches(texts: Iterable[str], batch: int) -> None:
    """Refuses a number of micro-batches of which one would have no samples."""
    for key, value in map(split_pin, texts):
        if key == "microbatch":
            given = f"pin microbatch={value} with a global batch of {batch}"
            check_cut(given, batch, int(value), "change the batch or the pin")
