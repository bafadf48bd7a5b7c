"""The command line as a user meets it: what it prints, and one clear message for each bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.cli.frontier_plot import table
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.explain.memory_curve import Curve, Point

SMALL = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 2
    found = capsys.readouterr()
    message = found.err[found.err.index("meshwright: ") :]  # after what was done until then
    assert "expected:" in message
    assert "Traceback" not in found.err
    return found.err


def test_plan_shows_alternatives_and_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    assert main(["plan", SMALL, "--cluster", "local:2", "--global-batch", "4", "-o", str(path)]) == 0
    shown = capsys.readouterr().out
    for words in (
        "predicted step",
        "predicted peak",
        "DDP",
        "FSDP (ZeRO-3)",
        "TP + SP (tp=2)",
        "PP + FSDP (pp=2)",
    ):
        assert words in shown
    assert main(["code", str(path)]) == 0
    assert "aten.linear(" in capsys.readouterr().out
    assert main(["code", str(path), "--pair", "1"]) == 0
    assert "def backward(" in capsys.readouterr().out


def test_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Of one stage: what bounds pipelines is less close."""
    assert main(["plan", SMALL, "--cluster", "local:2", "--pin", "pp=1", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["optimality_gap"] < 0.005  # what runs beside compute is a maximum, bounded from below
    assert found["predicted"]["step_seconds"] > 0
    assert {"incumbent", "expanded"} <= {event["what"] for event in found["search"]}
    assert [entry["name"] for entry in found["baselines"]] == [
        "DDP",
        "parameter server",
        "ZeRO-1",
        "ZeRO-2",
        "FSDP (ZeRO-3)",
        "FSDP + full checkpointing",
        "HSDP",
        "TP",
        "TP + SP",
        "FSDP + TP",
        "PP + FSDP",
        "PP + TP",
    ]
    why = {entry["name"]: entry["why"] for entry in found["baselines"] if entry["step_seconds"] is None}
    assert why["HSDP"] == "one host has no others to be whole on"
    assert why["FSDP + TP"].startswith("2 devices make no two axes")


def test_a_baseline_that_does_not_exist_speaks_of_no_pin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", SMALL, "--cluster", "local:3", "--global-batch", "7"]) == 0
    shown = capsys.readouterr().out
    assert "not possible: dp=3 with a global batch of 7; it needs a batch that divides evenly, such as 6 or 9" in shown
    assert not any("pin " in line for line in shown.splitlines() if "not possible" in line)


@pytest.mark.full
def test_train_on_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    assert main(["train", SMALL, "--nproc", "2", "--steps", "12", "--lr", "1e-2", "--json", str(path)]) == 0
    losses = json.loads(path.read_text())["losses"]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.5


def test_unknown_model_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown model 'gtp'" in refused(capsys, "plan", "gtp")
    assert "setting 'layer=2'" in refused(capsys, "plan", "gpt", "--set", "layer=2")
    assert "layers=many" in refused(capsys, "plan", "gpt", "--set", "layers=many")
    assert "divisible by heads" in refused(capsys, "plan", "gpt", "--set", "heads=7")


def test_bad_batch_cluster_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--global-batch 0" in refused(capsys, "plan", SMALL, "--global-batch", "0")
    refused(capsys, "plan", SMALL, "--cluster", "moon")
    assert "memory 'some'" in refused(capsys, "plan", SMALL, "--memory", "some")
    assert "optimizer 'lion'" in refused(capsys, "plan", SMALL, "--optimizer", "lion")
    nothing = refused(capsys, "plan", SMALL, "--cluster", "local:1", "--memory", "1KiB")
    assert "no plan fits in 1 KiB on one device" in nothing


@pytest.mark.full
def test_memory_in_which_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no plan fits in 1,024 bytes" in refused(capsys, "plan", SMALL, "--memory", "1KiB")


def test_a_world_size_or_model_that_is_not_the_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    assert main(["plan", SMALL, "--cluster", "local:2", "--quiet", "-o", str(path)]) == 0
    capsys.readouterr()
    assert "3 processes for a plan of 2" in refused(capsys, "train", SMALL, "--plan", str(path), "--nproc", "3")
    other = SMALL.replace("layers=1", "layers=2")
    assert "another model" in refused(capsys, "train", other, "--plan", str(path), "--nproc", "2")
    assert "cannot be read" in refused(capsys, "train", SMALL, "--plan", str(tmp_path / "none"), "--nproc", "2")


@pytest.mark.full
def test_a_failing_rank_ends_the_run_with_its_message(capfd: pytest.CaptureFixture[str]) -> None:
    small_vocabulary = SMALL.replace("vocab=128", "vocab=64")
    assert main(["train", small_vocabulary, "--nproc", "1", "--steps", "2", "--data", __file__]) == 2
    shown = capfd.readouterr().err
    assert "a vocabulary of 64" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "argv",
    [
        ("plan", "mlp", "-o"),
        ("plan", "mlp", "--json"),
        ("frontier", "mlp", "--json"),
        ("simulate", __file__, "--trace"),
    ],
)
def test_a_folder_that_is_not_there_is_refused_at_once(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "/nonexistent/x"]) == 2
    assert f"{argv[-1]} /nonexistent/x: no folder /nonexistent" in capsys.readouterr().err


def test_the_frontier_marks_its_knee_and_the_limit() -> None:
    gib = 1 << 30
    ours = tuple(Point("ours", size * gib, step) for size, step in ((10, 1.0), (4, 1.05), (2, 2.0)))
    curve = Curve(ours, ())
    cpu, gpu = load_cluster("local:1").devices[0], load_cluster("h100:1").devices[0]
    lines = table(curve, cpu, 3 * gib, Point("ours", 3 * gib, 1.5)).splitlines()
    assert lines[2].endswith("5.0%  knee: more memory helps little")
    assert lines[3].endswith("50.0%  the plan in 3 GiB")
    assert "in 8 micro-batches" in table(curve, cpu, 2 * gib, Point("ours", gib, 3.0, 8))
    assert "no plan fits: 2 GiB" in table(curve, cpu, gib, PlanError("no plan fits", "2 GiB", ""))
    assert "allocator" not in table(curve, cpu, gib)
    assert "offload" not in table(curve, cpu, gib), "a CPU's memory is the host's"
    said = table(curve, gpu, 4 * gib)
    assert "of 4 GiB a plan fills at most 3.72 GiB; the least peak here, 2 GiB, takes --memory 2.16GiB" in said
    assert "plan --pin offload=auto" in said
    large = table(Curve((Point("ours", 90 * gib, 0.9), *ours), ()), gpu).splitlines()
    assert large[1].endswith("does not fit: a device has 75.8 GiB")
    assert "does not fit" not in large[2]
    assert main(["frontier", "mlp", "--memory", "16"]) == 2


@pytest.mark.parametrize(
    ("cluster", "words", "said"),
    [
        pytest.param("h100:1", [], "mixed, eager", marks=pytest.mark.full),
        ("local:1", [], "fp32, eager"),
        ("h100:1", ["--compile"], "mixed, compiled"),
    ],
)
def test_frontier_asks_for_what_plan_does_and_says_so(
    cluster: str, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.json"
    assert main(["frontier", "mlp", "--cluster", cluster, "--points", "2", "--json", str(path), *words]) == 0
    assert f", batch 8, {said}, one " in capsys.readouterr().out.splitlines()[0]
    ours = json.loads(path.read_text())[0]
    assert main(["plan", "mlp", "--cluster", cluster, "--json", str(path), *words]) == 0
    assert json.loads(path.read_text())["predicted"]["step_seconds"] == pytest.approx(ours["step_s"], rel=1e-6)
