"""The simulated step as the page draws it: runs of layers that follow each other joined, times relative to the step."""

from __future__ import annotations

from typing import Any

from meshwright.capture.program import Program
from meshwright.simulate import Timeline

MOST_SPANS = 5000
"""Drawn at most; the page stays small and quick."""
MOST_POINTS = 6000
"""Of all stages' memory curves."""
KINDS = (
    "forward", "backward", "backward_input", "backward_weight", "recompute", "pass", "step", "gather", "reduce",
    "value", "gradient", "offload", "fetch",
)  # fmt: skip

Span = list[Any]
"""kind, first and last layer, micro-batch, begin, end."""


def timeline_data(timeline: Timeline, program: Program) -> dict[str, Any]:
    """Times are in millionths of the step, so that they take few characters."""
    assert timeline.spans is not None
    scale = 1e6 / timeline.step_s if timeline.step_s else 0.0
    names, spans = [segment.name for segment in program.segments], timeline.spans
    unit = max(1, timeline.peak_bytes // 4096)  # finer than a pixel
    rows = next(found for level in (0, 1, 2) if _few(found := _rows(timeline, scale, level)) or level == 2)
    return {
        "step_s": timeline.step_s,
        "bubble": timeline.bubble,
        "exposed": timeline.exposed,
        "names": names,
        "kinds": KINDS,
        "unit_bytes": unit,
        "stages": [
            {
                "ranks": timeline.ranks[number],
                "spans": [_packed(span) for span in rows[number]],
                "moved": [_packed(span) for span in moved],
                "memory": _curve(spans.memory[number], scale, unit, MOST_POINTS // len(timeline.stages)),
                "static_bytes": times.static_bytes,
                "peak_bytes": times.peak_bytes,
                "peak_at": round(times.peak_s * scale),
                "peak_name": _at_peak(timeline, number, names),
                "busy_s": times.busy_s,
                "exposed_s": times.exposed_s,
                "bubble_s": times.bubble_s,
            }
            for number, (times, moved) in enumerate(zip(timeline.stages, _moved(timeline, scale), strict=True))
        ],
    }


def _few(rows: list[list[Span]]) -> bool:
    return sum(map(len, rows)) <= MOST_SPANS


def _rows(timeline: Timeline, scale: float, level: int) -> list[list[Span]]:
    """What each stage computes. Spans that follow each other are joined: of the same work; at level 1 recomputation
    with the backward it is for; at level 2 micro-batches too."""
    assert timeline.spans is not None
    rows: list[list[Span]] = [[] for _ in timeline.stages]
    for stage, place, began_s, over_s in timeline.spans.ran:
        one, row = timeline.lists[stage][place], rows[stage]
        kind = "backward" if level and one.kind == "recompute" else one.kind
        last = row[-1] if row else None
        joins = last is not None and last[0] == kind and began_s * scale - last[5] < 1.0 and kind != "step"
        if last is not None and joins and (last[3] == one.microbatch or level == 2):
            last[2], last[5] = one.segment, over_s * scale
        elif over_s > began_s:
            row.append([kind, one.segment, one.segment, one.microbatch, began_s * scale, over_s * scale])
    return rows


def _moved(timeline: Timeline, scale: float) -> list[list[Span]]:
    """What each stage sends, or moves within; evenly thinned where there is much."""
    assert timeline.spans is not None
    rows: list[list[Span]] = [[] for _ in timeline.stages]
    for one in timeline.spans.messages:
        if one.over_s > one.began_s:
            row = [one.kind, one.segment, one.segment, one.microbatch, one.began_s * scale, one.over_s * scale]
            rows[one.source].append(row)
    every = max(1, -(-2 * sum(map(len, rows)) // MOST_SPANS))
    return [row[::every] for row in rows]


def _packed(span: Span) -> Span:
    kind, first, last, microbatch, began, over = span
    number = KINDS.index(kind) if kind in KINDS else -1
    return [number, first, last, microbatch, round(began), max(1, round(over) - round(began))]


def _curve(points: tuple[tuple[float, int], ...], scale: float, unit: int, most_points: int) -> list[list[int]]:
    """The largest of each of so many equal parts of the step, where there are more points than that."""
    if len(points) <= most_points:
        return [[round(at_s * scale), held // unit] for at_s, held in points]
    most: dict[int, tuple[float, int]] = {}
    for at_s, held in points:
        part = int(at_s * scale * most_points / 1e6)
        if part not in most or held > most[part][1]:
            most[part] = (at_s, held)
    return [[round(at_s * scale), held // unit] for _, (at_s, held) in sorted(most.items())]


def _at_peak(timeline: Timeline, stage: int, names: list[str]) -> str:
    """The instruction that ran when memory was fullest."""
    one = timeline.at_peak(stage)
    if one is None or one.segment is None:
        return ""
    return f"{one.kind} of {names[one.segment]}" + (f", micro-batch {one.microbatch}" if one.microbatch else "")
