"""Memory and time by layer: the parts of a peak add up to it, and to what the plan predicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.capture import capture
from meshwright.cli import main
from meshwright.cluster import load_cluster
from meshwright.explain.explain import explain
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes, show_seconds
from meshwright.planner.plan import make_plan
from meshwright.report.per_layer import at_peak, per_layer, show_layers

SMALL = "gpt?layers=3&hidden=32&heads=4&ffn=64&vocab=128&seq=16"


@pytest.mark.parametrize("pins", [("pp=1", "dp=2", "zero=3"), ("pp=2", "microbatch=4")])
def test_parts_of_the_peak_add_up(pins: tuple[str, ...]) -> None:
    program = capture(*parse_reference(SMALL).meta(8))
    plan = make_plan(program, load_cluster("local:2"), pins=pins)
    rows, peaks = per_layer(plan, program)
    assert [row.name for row in rows] == [segment.name for segment in program.segments]
    assert max(peak.peak_bytes for peak in peaks) == plan.predicted.peak_bytes
    for peak in peaks:
        own = [row for row in rows if row.stage == peak.stage]
        # What is left over is temporary: no more than the largest layers need, with weights that are gathered early.
        assert 0 <= peak.temporary_bytes <= 3 * max(row.buffers_bytes for row in own)
        assert peak.running.split(" of ")[1] in [row.name for row in own]
    told, table = at_peak(plan, program), "\n".join(show_layers(plan, program))
    assert [sum(one.values()) for one in told] == [peak.peak_bytes for peak in peaks]
    assert all(word not in peak.op for peak in peaks for word in ("flatten", "view", "~"))
    assert table.count("in all  ") == len(peaks)
    assert ("stage 1: in all" in table) == (len(peaks) > 1)
    assert (
        f"activations kept for backward {show_bytes(told[-1]['activations kept for backward'])}" in explain(plan, told)
        or len(peaks) == 1
    )
    if len(plan.stages) == 1:
        assert sum(row.forward_s for row in rows) == pytest.approx(plan.predicted.forward_s)
        assert sum(row.weights_bytes for row in rows) == plan.predicted.static_bytes


def test_profile_takes_a_plan_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    assert main(["plan", SMALL, "--cluster", "local:2", "--pin", "dp=2", "--quiet", "-o", str(file)]) == 0
    assert main(["profile", str(file), "--json", str(tmp_path / "p.json")]) == 0
    shown = capsys.readouterr().out
    assert "layers.0 to layers.2 (3), each" in shown
    assert ", loss  " in shown
    plan = Plan.load(file)
    (whole,) = (line for line in shown.splitlines() if line.startswith("  in all "))
    assert f"{show_seconds(plan.predicted.forward_s)}  " in whole
    rows = json.loads((tmp_path / "p.json").read_text())["layers"]
    stored = sum(row["stored_bytes"] for row in rows)
    assert 0.9 < stored / sum(plan.weight_bytes.values()) <= 1  # data parallel: all, but for small ones that are split
    assert f"{show_bytes(stored)}  " in whole
    assert f"{show_bytes(plan.predicted.static_bytes - stored)}  " in whole
    assert "peak " in shown
    assert len(json.loads((tmp_path / "p.json").read_text())["layers"]) == 5
    assert main(["explain", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "by layer, on one device: seconds of a step" in shown
    assert "\n  layers.0 to layers.2 (3): " in shown  # as in the table, not by another number


def test_a_tied_weight_is_counted_once_and_nowhere_less_than_nothing() -> None:
    program = capture(*parse_reference("gpt?layers=1&hidden=64&heads=2&ffn=128&vocab=512&seq=32").meta(8))
    plan = make_plan(program, load_cluster("h100:2"), pins=("dp=2", "zero=2"), effort="fast")
    rows, peaks = per_layer(plan, program)
    assert all(row.weights_bytes >= 0 for row in rows)
    held = sum(row.weights_bytes + row.gradients_bytes + row.activations_bytes for row in rows)
    assert held + peaks[0].temporary_bytes == peaks[0].peak_bytes
