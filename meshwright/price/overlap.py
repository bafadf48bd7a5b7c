"""A step as it is executed: what runs beside what.

The runtime has one lane for gathers of parameters and reductions of gradients (`runtime.overlap`): they run in the
order they are begun, while segments compute. The gather of a segment is begun before the segment that runs before it,
and waited for where it is used. On a GPU the host runs ahead of the device, and a step takes the longer of what the two
need. So, in DESIGN.md's words, a step is serial + max(compute, overlappable communication).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.cluster import Mesh
from meshwright.plan import FrontierPoint
from meshwright.price.parameter import chain_uses


def runs_beside(mesh: Mesh) -> bool:
    """Whether parameters of this mesh are gathered, and their gradients reduced, while segments compute."""
    return mesh.world_size > 1


def overlapped(points: Sequence[FrontierPoint], microbatches: int = 1) -> float:
    """Seconds of a step of these segments, one after the other, as executed: what is overlappable costs as far as it
    is waited for; where the host is slower than the device, the step takes what the host needs."""
    main_s = end_s = 0.0
    for event in _play(points, microbatches):
        main_s, end_s = event.over_s, max(end_s, event.done_s)
    device_s = max(main_s, end_s) + sum(point.step_s for point in points)
    return max(device_s, host_seconds(points, microbatches))


def host_seconds(points: Sequence[FrontierPoint], microbatches: int = 1) -> float:
    """What the host needs to ask for a step; zero on a CPU."""
    each_s = sum(point.forward_host_s + point.backward_host_s for point in points)
    return microbatches * each_s + sum(point.step_host_s for point in points)


def late_bytes(points: Sequence[FrontierPoint], microbatches: int = 1) -> int:
    """The most that is alive of other segments' parameters and gradients while one runs: parameters that the next one
    gathers, gradients that wait for their reduction.

    A segment's own are in its transient bytes.
    """
    if not any(point.overlappable_s for point in points):
        return 0
    waiting: deque[tuple[float, int]] = deque()  # the lane ends in the order it began
    most = held = 0
    for event in _play(points, microbatches):
        while waiting and waiting[0][0] <= event.over_s - event.seconds:
            held -= waiting.popleft()[1]
        most = max(most, event.early_bytes + held)
        if event.done_s > event.over_s:
            waiting.append((event.done_s, event.late_bytes))
            held += event.late_bytes
    return most


class _Event(NamedTuple):
    """A segment's run. over_s: when it was over, with all that was waited for; done_s: when its reduction is done.
    seconds: how long it ran. late_bytes: what waits for the reduction; early_bytes: what the next run has gathered."""

    over_s: float
    done_s: float
    seconds: float
    late_bytes: int
    early_bytes: int


def _play(points: Sequence[FrontierPoint], microbatches: int) -> Iterator[_Event]:
    """Every segment's forward and backward of every micro-batch, in the order in which they run (`schedule.one_stage`).

    The lane is free again at lane_s; what run k needs is there at ready_s[k].
    """
    count = len(points)
    chain = [*range(count), *reversed(range(count))]
    runs = chain * microbatches
    now_s = lane_s = 0.0
    ready_s = [0.0] * (len(runs) + 1)

    def begin(at: int) -> float:
        """The gather of a run, on the lane; seconds that have to be waited for at once."""
        nonlocal lane_s
        seconds = _gather_s(points, runs, at) if at < len(runs) else 0.0
        if not seconds:
            return 0.0
        point = points[runs[at]]
        beside_s: float = seconds * max(0.0, point.overlappable_s - point.last_s) / point.first_s
        if beside_s:
            lane_s = max(lane_s, now_s) + beside_s
            ready_s[at] = lane_s
        return seconds - beside_s

    now_s += begin(0)
    now_s += begin(1)
    for at, index in enumerate(runs):
        point, forward = points[index], at % (2 * count) < count
        seconds = point.forward_s if forward else point.backward_s
        now_s = done_s = max(now_s, ready_s[at]) + seconds
        waited_s = begin(at + 2)
        if not forward:
            last = at >= len(runs) - count
            reduced_s = point.scatter_s / microbatches + (point.last_s - point.scatter_s if last else 0.0)
            beside_s = reduced_s * min(1.0, point.overlappable_s / point.last_s) if point.last_s else 0.0
            waited_s += reduced_s - beside_s
            if beside_s:
                done_s = lane_s = max(lane_s, now_s) + beside_s
        now_s += waited_s
        following = points[runs[at + 1]] if at + 1 < len(runs) and runs[at + 1] != index else None
        early = following.early_bytes if following is not None and following.overlappable_s else 0
        yield _Event(now_s, max(done_s, now_s), seconds + waited_s, point.late_bytes, early)


def _gather_s(points: Sequence[FrontierPoint], runs: Sequence[int], at: int) -> float:
    """A run's gather. What is gathered once a step has the first; what is gathered again, all but those of a segment
    that has just run."""
    point = points[runs[at]]
    if not point.first_s:
        return 0.0
    if not point.again_s:
        return point.first_s if at < len(points) else 0.0
    if at and runs[at - 1] == runs[at]:
        return 0.0
    microbatches = len(runs) // (2 * len(points))
    return point.first_s / round(2 * microbatches * chain_uses((runs[at],), len(points), microbatches))
