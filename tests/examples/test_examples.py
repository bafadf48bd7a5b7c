"""Every script of examples/ runs, at tiny size, and does what it says."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
LEARNS = {
    "finetune_lora.py": ["--steps", "4", "--layers", "1"],
    "gpipe_five_lines.py": [],
    "hf_trainer.py": ["--steps", "4", "--layers", "1"],
    "mixture_of_experts.py": ["--steps", "3", "--layers", "1"],
    "vision_batchnorm.py": ["--steps", "4"],
    "vision_language.py": ["--steps", "3", "--layers", "1", "--cluster", ""],
}
SLOW = ("finetune_lora.py", "hf_trainer.py", "mixture_of_experts.py", "vision_language.py")
"""Some CPU seconds each."""
OTHERS = {"demo.py", "memory_budget.py", "plan_a_cluster.py", "pretrain_gpt.py"}


def run(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "argv", [name, *words])
    return runpy.run_path(str(FOLDER / name), run_name="example")["main"]()


def test_every_example_is_run_here() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {*LEARNS, *OTHERS}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in SLOW else name for name in LEARNS]
)
def test_it_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = run(name, LEARNS[name], monkeypatch)
    assert last < first


def test_pretraining_learns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pretrain_gpt.py", ["--steps", "6", "--layers", "1", "--hidden", "32"], monkeypatch) < 5.5
    assert "step 0: loss" in capsys.readouterr().out


def test_a_smaller_budget_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = run("memory_budget.py", [], monkeypatch)
    assert small < large <= 32 << 20
    assert small <= 6 << 20


@pytest.mark.full
def test_clusters_are_planned_and_their_pages_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = "gpt?layers=2&hidden=64&heads=4&ffn=128&vocab=128&seq=32"
    words = ["--model", model, "--clusters", "h100:2,4090:2", "--global-batch", "8", "--report", str(tmp_path)]
    plans = run("plan_a_cluster.py", words, monkeypatch)
    assert [plan.cluster for plan in plans] == ["h100:2", "4090:2"]
    assert len(list(tmp_path.glob("*.html"))) == 2


@pytest.mark.full
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((FOLDER / "notebook.ipynb").read_text())["cells"]
    scope: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), scope)
    assert "<" in scope["plan"]._repr_html_()
    assert scope["tight"].predicted.peak_bytes < scope["plan"].predicted.peak_bytes
    assert (tmp_path / "plan.html").is_file()


@pytest.mark.full
@pytest.mark.parametrize("name", ["pretrain_gpt.py", *LEARNS])
def test_it_runs_on_two_processes(name: str) -> None:
    words = LEARNS.get(name, ["--steps", "3", "--layers", "1"])
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*launch, str(FOLDER / name), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "loss" in done.stdout


@pytest.mark.full
def test_the_demo_shows_what_it_says(tmp_path: Path) -> None:
    words = [sys.executable, str(FOLDER / "demo.py"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all 20 steps agree" in done.stdout
    headlines = {line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("gpt?")}
    assert len(headlines) == 3, headlines  # by budget and by network
    assert len(list(tmp_path.glob("*.html"))) == 3
