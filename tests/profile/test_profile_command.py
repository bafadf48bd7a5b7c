"""`meshwright profile`: the figures a user reads, the JSON a script reads, and a cost that does not grow with depth."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.capture import capture
from meshwright.cli.profile import add_arguments
from meshwright.errors import ModelError
from meshwright.models.reference import parse_reference
from meshwright.profile import chain, profile_step

SMALL = "gpt?hidden=24&heads=4&ffn=48&vocab=32"
FIELDS = {
    "params", "forward_flops", "step_flops", "saved_bytes", "peak_bytes", "peak_at", "distinct_segments", "segments",
    "capture_seconds", "profile_seconds",
}  # fmt: skip
SEGMENT_FIELDS = {"name", "count", "ops", "forward_flops", "saved_bytes", "transient_bytes"}


def profile(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(words)
    return int(args.run(args))


def test_json_has_every_field_and_its_segments_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.json"
    assert profile(SMALL, "--set", "layers=3", "--seq", "12", "--batch", "2", "--json", str(file)) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    assert found.keys() >= FIELDS
    assert all(row.keys() >= SEGMENT_FIELDS for row in found["segments"])
    assert sum(row["count"] for row in found["segments"]) == 5
    assert sum(row["count"] * row["forward_flops"] for row in found["segments"]) == found["forward_flops"]
    saved = sum(row["count"] * row["saved_bytes"] for row in found["segments"])
    assert saved + found["prologue"]["saved_bytes"] == found["saved_bytes"]
    assert sum(found["peak_parts"].values()) == found["peak_bytes"]
    shown = capsys.readouterr().out
    assert "layers.0" in shown
    assert found["peak_at"] in shown
    assert found["largest_saved"][0]["name"] in shown


def test_json_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(SMALL, "--set", "layers=1", "--seq", "12", "--device", "cpu", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cpu"


def test_precision_and_optimizer_change_the_static_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    def static(*words: str) -> dict[str, int]:
        profile(SMALL, "--set", "layers=1", "--seq", "12", "--device", "cpu", "--json", "-", *words)
        found: dict[str, int] = json.loads(capsys.readouterr().out)["static"]
        return found

    single, half, mixed = (static("--precision", name) for name in ("fp32", "bf16", "mixed"))
    assert single["parameter_bytes"] == 2 * half["parameter_bytes"] == mixed["parameter_bytes"]
    assert mixed["compute_copy_bytes"] == half["parameter_bytes"]
    assert static("--optimizer", "sgd")["optimizer_bytes"] == 0
    assert static("--optimizer", "momentum")["optimizer_bytes"] == single["parameter_bytes"]


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(ModelError, match="--batch 0"):
        profile(SMALL, "--batch", "0")


def test_facts_and_peaks_are_worked_out_once_per_distinct_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("graph_facts", "liveness"):
        original = getattr(chain, name)
        monkeypatch.setattr(chain, name, lambda *args, f=original, n=name: (calls.append(n), f(*args))[1])

    def count(layers: int) -> int:
        program = capture(*parse_reference(f"{SMALL}&layers={layers}&seq=12").meta(2))
        calls.clear()
        profile_step(program)
        return len(calls)

    assert count(12) == count(4)
