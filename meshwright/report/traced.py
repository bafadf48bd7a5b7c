"""A torch profiler trace of a run and the plan's prediction, by layer: `meshwright compare plan.json trace.json.gz`.

A trainer marks what it plays in the profiler's timeline while a profiler records: `meshwright training step`, and
`meshwright forward 3 mb0` for each instruction. On a GPU the marks' kernels are read, else the host's time.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.explain.accuracy import expected_error
from meshwright.plan import Instruction, Plan
from meshwright.plan.units import show_seconds
from meshwright.predict.step import play

MARK = "meshwright "
STEP = f"{MARK}training step"
COLUMNS = {
    "forward": ("forward", "pass"),
    "backward": ("backward", "backward_input", "backward_weight", "recompute"),
}
TODO = (
    "record trainer.step under `torch.profiler.profile()`, then `profile.export_chrome_trace(...)`; "
    "docs/running.md shows how"
)

Work = tuple[str, int]
"""`forward` or `backward`, and the layer."""


@dataclass(frozen=True, slots=True)
class Measured:
    """steps: how many were recorded. step_s: of one, on average. work_s: of one step."""

    steps: int
    step_s: float
    work_s: Mapping[Work, float]


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds a trace, by its name or its first characters."""
    name = os.fspath(path)
    if name.endswith(".gz"):
        return True
    try:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            return '"traceEvents"' in (text := file.read(4096)) or '"schemaVersion"' in text
    except OSError:
        return False


def read_trace(path: str | os.PathLike[str]) -> Measured:
    events = [one for one in _events(path) if str(one.get("name", "")).startswith(MARK) and one.get("ph") == "X"]
    steps = [one["dur"] for one in events if one["name"] == STEP and one.get("cat") == "user_annotation"]
    if not steps:
        raise PlanError(f"{path} has no step of a meshwright trainer", "a profiler's trace of trainer.step", TODO)
    device = [one for one in events if one.get("cat") == "gpu_user_annotation"]
    return Measured(len(steps), sum(steps) / len(steps) * 1e-6, _work(device or events, len(steps)))


def _events(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    try:
        raw = Path(path).read_bytes()
        found = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (OSError, ValueError, EOFError) as error:
        raise PlanError(f"{path} cannot be read: {error}", "a trace that torch's profiler wrote", TODO) from error
    events = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(events, list):
        raise PlanError(f"{path} has no traceEvents", "a trace that torch's profiler wrote", TODO)
    return [one for one in events if isinstance(one, dict)]


def _work(events: Iterable[Mapping[str, Any]], steps: int) -> dict[Work, float]:
    """Of several streams that ran a mark's kernels the busiest counts."""
    found: defaultdict[Work, Counter[object]] = defaultdict(Counter)
    for one in events:
        if one["name"] == STEP:
            continue
        instruction = Instruction.parse(one["name"].removeprefix(MARK))
        column = _column(instruction.kind)
        if column is not None and instruction.segment is not None:
            found[column, instruction.segment][one.get("tid")] += one["dur"]
    return {work: max(streams.values()) * 1e-6 / steps for work, streams in found.items()}


def _column(kind: str) -> str | None:
    return next((column for column, kinds in COLUMNS.items() if kind in kinds), None)


def predicted_work(plan: Plan, program: Program) -> tuple[float, dict[Work, float]]:
    """Seconds of the step and of each layer's forward and backward in it, as the simulator plays them."""
    timeline = play(plan, program, spans=True).timeline
    assert timeline.spans is not None
    found: defaultdict[Work, float] = defaultdict(float)
    for stage, place, began_s, over_s in timeline.spans.ran:
        one = timeline.lists[stage][place]
        if one.segment is not None and (column := _column(one.kind)) is not None:
            found[column, one.segment] += over_s - began_s
    return timeline.step_s, dict(found)


@dataclass(frozen=True, slots=True)
class Row:
    """Of a run of alike layers: predicted and measured seconds, of forward or of backward."""

    layers: tuple[int, ...]
    what: str
    predicted_s: float
    measured_s: float


def compare_trace(plan: Plan, program: Program, path: str | os.PathLike[str]) -> tuple[Measured, list[Row]]:
    """Layers of one graph that follow each other under one choice are a row; those that the traced rank did not run are
    left out."""
    measured = read_trace(path)
    _, predicted = predicted_work(plan, program)
    unknown = [index for _, index in measured.work_s if index >= len(program.segments)]
    if unknown:
        given = f"{path} has a layer {unknown[0]}, the plan {len(program.segments)} layers"
        raise PlanError(given, "a trace of this plan's run", "name the plan that was run")
    rows = []
    every = range(len(program.segments))
    for run in [list(alike) for _, alike in groupby(every, lambda at: (program.segments[at].graph, plan.segments[at]))]:
        for what in COLUMNS:
            ran = [index for index in run if (what, index) in measured.work_s]
            if ran:
                seconds = [sum(of.get((what, index), 0.0) for index in ran) for of in (predicted, measured.work_s)]
                rows.append(Row(tuple(ran), what, *seconds))
    return measured, rows


def show_trace(plan: Plan, program: Program, path: str | os.PathLike[str]) -> list[str]:
    """As a table: predicted, measured, and by how much the prediction is off."""
    measured, rows = compare_trace(plan, program, path)
    table = [("layers", "", "predicted", "measured", "off by")]
    for row in rows:
        names = [program.segments[index].name for index in row.layers]
        name = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)}), all"
        table.append((name, row.what, *_pair(row.predicted_s, row.measured_s)))
    for what in COLUMNS:
        own = [row for row in rows if row.what == what]
        table.append(("all layers", what, *_pair(sum(r.predicted_s for r in own), sum(r.measured_s for r in own))))
    optimizer_s = plan.predicted.optimizer_s
    table.append(("step without optimizer", "", *_pair(plan.predicted.step_s - optimizer_s, measured.step_s)))
    wide = [max(len(row[place]) for row in table) for place in range(5)]
    many = f"{measured.steps} recorded steps" if measured.steps > 1 else "1 recorded step"
    lines = [f"{path}: mean of {many} against what the plan predicts ({expected_error(plan)})"]
    for name, what, *cells in table:
        shown = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, wide[2:], strict=True))
        lines.append(f"  {name:<{wide[0]}}  {what:<{wide[1]}}  {shown}")
    return lines


def _pair(predicted_s: float, measured_s: float) -> tuple[str, str, str]:
    off = f"{predicted_s / measured_s - 1:+.0%}" if measured_s else "-"
    return show_seconds(predicted_s), show_seconds(measured_s), off
