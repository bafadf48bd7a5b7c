"""A simulated step in the form of PyTorch's memory snapshots, for its viewer: a device for each stage.

The simulator knows bytes held, not tensors: each rise is an allocation named after what ran, each fall frees the
newest of them first, in part where need be.
"""

from __future__ import annotations

import os
import pickle
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.errors import PlanError
from meshwright.simulate.timeline import Timeline

Event = dict[str, Any]


def write_snapshot(timeline: Timeline, path: str | os.PathLike[str], names: Sequence[str]) -> None:
    """names: of the segments."""
    packed = pickle.dumps(snapshot(timeline, names))
    try:
        Path(path).write_bytes(packed)
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}", "a writable path") from error


def snapshot(timeline: Timeline, names: Sequence[str]) -> dict[str, Any]:
    """`device_traces`, with allocations and frees in the order of time; microseconds."""
    if timeline.spans is None:
        raise PlanError("a Timeline without spans", "one simulated with spans=True", "simulate again")
    traces = [_trace(timeline, stage, names) for stage in range(len(timeline.stages))]
    return {"segments": [], "device_traces": traces, "allocator_settings": {}, "external_annotations": []}


def _trace(timeline: Timeline, stage: int, names: Sequence[str]) -> list[Event]:
    assert timeline.spans is not None
    ran = sorted((began_s, place) for number, place, began_s, _ in timeline.spans.ran if number == stage)
    starts = [began_s for began_s, _ in ran]
    events: list[Event] = []
    alive: list[tuple[int, int, str]] = []
    address = [1 << 20]
    held = 0

    def allocate(size: int, what: str, at_s: float) -> None:
        events.append(_event("alloc", address[0], size, what, at_s))
        alive.append((address[0], size, what))
        address[0] += size + 512 - size % 512

    for at_s, now in timeline.spans.memory[stage]:
        what = (
            "parameters, gradients and optimizer" if not events else _running(timeline, stage, ran, starts, at_s, names)
        )
        if now > held:
            allocate(now - held, what, at_s)
        while now < held:
            where, size, owner = alive.pop()
            events += [_event(kind, where, size, owner, at_s) for kind in ("free_requested", "free_completed")]
            held -= size
            if held < now:  # only a part of it went
                allocate(now - held, owner, at_s)
                held = now
        held = now
    return events


def _running(
    timeline: Timeline, stage: int, ran: list[tuple[float, int]], starts: list[float], at_s: float, names: Sequence[str]
) -> str:
    place = bisect_right(starts, at_s) - 1
    if place < 0:
        return "before the first instruction"
    one = timeline.lists[stage][ran[place][1]]
    of = "" if one.segment is None else f" of {names[one.segment]}"
    return f"{one.kind}{of}" + ("" if one.microbatch is None else f", micro-batch {one.microbatch}")


def _event(action: str, address: int, size: int, what: str, at_s: float) -> Event:
    frames = [{"name": what, "filename": "meshwright", "line": 0}]
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "frames": frames,
        "time_us": round(at_s * 1e6),
    }
