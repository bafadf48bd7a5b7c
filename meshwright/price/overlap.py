"""A step as it is executed: what runs beside what.

The runtime reduces gradients on a thread of its own, in order, while backward goes on (`runtime.overlap`); gathers are
waited for. On a GPU it waits for reductions too; there the host runs ahead of the device, and a step takes the longer
of what the two need. So, in DESIGN.md's words, a step is serial + max(compute, overlappable communication).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.cluster import Mesh
from meshwright.plan import FrontierPoint


def reduces_beside(mesh: Mesh) -> bool:
    """Whether gradients of this mesh are reduced while backward goes on."""
    return mesh.device.kind == "cpu" and mesh.world_size > 1


def overlapped(points: Sequence[FrontierPoint], microbatches: int = 1) -> float:
    """Seconds of a step of these segments, one after the other, as executed: what is overlappable costs as far as it
    ends after backward; where the host is slower than the device, the step takes what the host needs."""
    main_s = end_s = 0.0
    for event in _reductions(points, microbatches):
        main_s, end_s = event.begun_s, max(end_s, event.done_s)
    device_s = max(main_s, end_s) + sum(point.step_s for point in points)
    return max(device_s, host_seconds(points, microbatches))


def host_seconds(points: Sequence[FrontierPoint], microbatches: int = 1) -> float:
    """What the host needs to ask for a step; zero on a CPU."""
    each_s = sum(point.forward_host_s + point.backward_host_s for point in points)
    return microbatches * each_s + sum(point.step_host_s for point in points)


def late_bytes(points: Sequence[FrontierPoint], microbatches: int = 1) -> int:
    """The most that gradients take which wait for their reduction while another segment's backward runs.

    A segment's own are in its transient bytes.
    """
    waiting: list[tuple[float, int]] = []
    most = 0
    for event in _reductions(points, microbatches):
        waiting = [(done_s, size) for done_s, size in waiting if done_s > event.begun_s - event.backward_s]
        most = max(most, sum(size for _, size in waiting))
        if event.done_s > event.begun_s:
            waiting.append((event.done_s, event.bytes))
    return most


class _Event(NamedTuple):
    """After a segment's backward: when it was over, when its reduction is done, how long backward took, and what waits.
    begun_s includes what is not overlappable."""

    begun_s: float
    done_s: float
    backward_s: float
    bytes: int


def _reductions(points: Sequence[FrontierPoint], microbatches: int) -> Iterator[_Event]:
    """Every segment's backward of every micro-batch, in the order in which they run."""
    now_s = free_s = 0.0
    for number in range(microbatches):
        last = number == microbatches - 1
        for point in points:
            now_s += point.forward_s + point.again_s / (2 * microbatches)
            now_s += point.first_s - point.again_s if number == 0 else 0.0
        for point in reversed(points):
            backward_s = point.backward_s + point.again_s / (2 * microbatches)
            reduced_s = point.scatter_s / microbatches + (point.last_s - point.scatter_s if last else 0.0)
            beside_s = reduced_s * point.overlappable_s / point.last_s if point.last_s else 0.0
            now_s += backward_s + reduced_s - beside_s
            done_s = now_s
            if beside_s:
                done_s = free_s = max(free_s, now_s) + beside_s
            yield _Event(now_s, done_s, backward_s, point.late_bytes)
