"""The simulated step as the page draws it: runs of layers that follow each other joined, times relative to the step."""

from __future__ import annotations

from typing import Any

from meshwright.capture.program import Program
from meshwright.simulate import Timeline

MOST_SPANS = 6000
"""Drawn at most; the page stays small and quick."""
MOST_POINTS = 1200
"""Of a stage's memory curve."""


def timeline_data(timeline: Timeline, program: Program) -> dict[str, Any]:
    """Times are in millionths of the step, so that they take few characters."""
    assert timeline.spans is not None
    scale = 1e6 / timeline.step_s if timeline.step_s else 0.0
    names = [segment.name for segment in program.segments]
    rows: list[list[list[Any]]] = [[] for _ in timeline.stages]
    for stage, place, began_s, over_s in timeline.spans.ran:
        one = timeline.lists[stage][place]
        _add(rows[stage], one.kind, one.segment, one.microbatch, began_s * scale, over_s * scale)
    moved: list[list[list[Any]]] = [[] for _ in timeline.stages]
    for message in timeline.spans.messages:
        if message.over_s > message.began_s:
            where = moved[message.source]
            _add(
                where,
                message.kind,
                message.segment,
                message.microbatch,
                message.began_s * scale,
                message.over_s * scale,
            )
    shown = max(1, -(-sum(map(len, rows)) // MOST_SPANS))
    return {
        "step_s": timeline.step_s,
        "bubble": timeline.bubble,
        "exposed": timeline.exposed,
        "names": names,
        "stages": [
            {
                "ranks": timeline.ranks[number],
                "spans": [_rounded(span) for span in rows[number]],
                "moved": [_rounded(span) for span in moved[number]][: MOST_SPANS // len(rows)],
                "memory": _curve(timeline.spans.memory[number], scale),
                "static_bytes": times.static_bytes,
                "peak_bytes": times.peak_bytes,
                "peak_at": round(times.peak_s * scale),
                "peak_name": _at_peak(timeline, number, names),
                "busy_s": times.busy_s,
                "exposed_s": times.exposed_s,
                "bubble_s": times.bubble_s,
            }
            for number, times in enumerate(timeline.stages)
        ],
        "thinned": shown > 1,
    }


def _add(
    row: list[list[Any]], kind: str, segment: int | None, microbatch: int | None, began: float, over: float
) -> None:
    """Joined with the span before it where the same work of the same micro-batch goes on."""
    if row:
        last = row[-1]
        if last[0] == kind and last[3] == microbatch and began - last[5] < 1.0 and kind in ("forward", "backward"):
            last[2], last[5] = segment, over
            return
    row.append([kind, segment, segment, microbatch, began, over])


def _rounded(span: list[Any]) -> list[Any]:
    return [*span[:4], round(span[4]), round(span[5])]


def _curve(points: tuple[tuple[float, int], ...], scale: float) -> list[list[int]]:
    """The largest of each of so many equal parts of the step, where there are more points than that."""
    if len(points) <= MOST_POINTS:
        return [[round(at_s * scale), held] for at_s, held in points]
    most: dict[int, tuple[float, int]] = {}
    for at_s, held in points:
        part = int(at_s * scale * MOST_POINTS / 1e6)
        if part not in most or held > most[part][1]:
            most[part] = (at_s, held)
    return [[round(at_s * scale), held] for _, (at_s, held) in sorted(most.items())]


def _at_peak(timeline: Timeline, stage: int, names: list[str]) -> str:
    """The instruction that ran when memory was fullest."""
    assert timeline.spans is not None
    at_s = timeline.stages[stage].peak_s
    for number, place, began_s, over_s in timeline.spans.ran:
        one = timeline.lists[number][place]
        if number == stage and began_s <= at_s < over_s and one.segment is not None:
            return f"{one.kind} of {names[one.segment]}" + (f", micro-batch {one.microbatch}" if one.microbatch else "")
    return ""
