"""A Timeline as a Chrome trace: a process for each stage, tracks for compute, gathers and each channel, bytes held."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshwright.errors import PlanError
from meshwright.simulate.timeline import Message, Timeline

COMPUTE, COLLECTIVES, FIRST_CHANNEL = 0, 1, 2


def write_trace(timeline: Timeline, path: str | os.PathLike[str], names: Sequence[str] = ()) -> None:
    """JSON in the trace event format, gzipped where the name ends in .gz; times are microseconds."""
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": list(events(timeline, names))}, separators=(",", ":"))
    packed = os.fspath(path).endswith(".gz")
    try:
        Path(path).write_bytes(gzip.compress(text.encode(), mtime=0) if packed else text.encode())
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}", "a writable path") from error


def events(timeline: Timeline, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    spans = timeline.spans
    if spans is None:
        raise PlanError("a Timeline without spans", "one simulated with spans=True", "simulate again")
    tracks = {(stage, COMPUTE): "compute" for stage in range(len(timeline.stages))}
    for message in spans.messages:
        inside = message.source == message.target
        tracks[_track(message)] = "collectives" if inside else f"{message.kind}s to stage {message.target}"
    for stage, ranks in enumerate(timeline.ranks):
        many = f"{ranks} ranks" if ranks > 1 else "1 rank"
        yield {"ph": "M", "name": "process_name", "pid": stage, "args": {"name": f"stage {stage} ({many})"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": stage, "args": {"sort_index": stage}}
    for (stage, track), name in sorted(tracks.items()):
        yield {"ph": "M", "name": "thread_name", "pid": stage, "tid": track, "args": {"name": name}}
    for stage, place, began_s, over_s in spans.ran:
        one = timeline.lists[stage][place]
        yield _span(_named(str(one), one.segment, names), one.kind, (stage, COMPUTE), began_s, over_s)
    for message in spans.messages:
        microbatch = "" if message.microbatch is None else f" mb{message.microbatch}"
        name = f"{message.kind} {message.segment}{microbatch}"
        yield _span(
            _named(name, message.segment, names), message.kind, _track(message), message.began_s, message.over_s
        )
    for stage, changes in enumerate(spans.memory):
        for at_s, held in changes:
            yield {"ph": "C", "name": "bytes held", "pid": stage, "ts": at_s * 1e6, "args": {"bytes": held}}


def _named(text: str, segment: int | None, names: Sequence[str]) -> str:
    """`forward 3 mb0` -> `forward layers.2 mb0`."""
    if segment is None or not names:
        return text
    kind, number, *rest = text.split()
    return " ".join([kind, names[segment] if number == str(segment) else number, *rest])


def _track(message: Message) -> tuple[int, int]:
    """Values and gradients to a stage are two channels: on each, one message comes after the other."""
    if message.source == message.target:
        return message.source, COLLECTIVES
    return message.source, FIRST_CHANNEL + 2 * message.target + (message.kind == "gradient")


def _span(name: str, category: str, track: tuple[int, int], began_s: float, over_s: float) -> dict[str, Any]:
    stage, thread = track
    timing = {"ts": began_s * 1e6, "dur": (over_s - began_s) * 1e6}
    return {"ph": "X", "name": name, "cat": category, "pid": stage, "tid": thread, **timing}
