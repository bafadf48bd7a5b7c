"""A slice of the zoo: a model of transformers and some hard ones train on two ranks as plain PyTorch does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.zoo.compare import difference
from bench.zoo.lists import SOURCES, names_of
from bench.zoo.page import FAULTS, claims, page, write_page
from bench.zoo.rows import joined
from bench.zoo.steps import Trace

ROOT = Path(__file__).parents[1]
EQUAL = ("transformers:gpt2", "adversarial:codebook-ema")
REFUSED = ("adversarial:data-dependent-shape",)


def run_zoo(folder: Path, *args: str) -> dict[str, str]:
    command = [sys.executable, str(ROOT / "bench/zoo.py"), *args, "--jobs", "2", "--json", str(folder / "zoo.json")]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=1500)
    rows = json.loads((folder / "zoo.json").read_text(encoding="utf-8"))["rows"]
    return {row["name"]: f"{row['outcome']}: {row.get('text', '')}" for row in rows}


@pytest.mark.parametrize("equal", [EQUAL[1:], pytest.param(EQUAL[:1], marks=pytest.mark.full)])
def test_a_slice_of_the_zoo_trains_like_eager(equal: tuple[str, ...], tmp_path: Path) -> None:
    found = run_zoo(tmp_path, "--reuse", "--parts", "run", "--exactly", ",".join((*equal, *REFUSED)))
    assert {name: text.partition(":")[0] for name, text in found.items()} == {
        **dict.fromkeys(equal, "equal"),
        **dict.fromkeys(REFUSED, "refused"),
    }, found


@pytest.mark.full
def test_nothing_adversarial_is_wrong(tmp_path: Path) -> None:
    found = run_zoo(tmp_path, "--source", "adversarial")
    assert {name: text for name, text in found.items() if text.partition(":")[0] in FAULTS} == {}


def test_there_are_as_many_models_as_promised() -> None:
    names = {source: names_of(source) for source in SOURCES}
    assert len(names["transformers"]) >= 40
    assert len(names["timm"]) >= 10
    assert len(names["diffusers"]) >= 4
    assert sum(map(len, names.values())) - len(names["adversarial"]) >= 70
    assert len(names["adversarial"]) >= 40


def test_the_page_is_written_at_the_end_of_another(tmp_path: Path) -> None:
    file = tmp_path / "models.md"
    file.write_text("# Models\n\nOthers.\n", encoding="utf-8")
    for outcome in ("refused", "equal"):
        row = {"name": "timm:resnet18", "source": "timm", "outcome": outcome, "phase": "", "cpu_s": {}, "text": ""}
        write_page(file, page([row]))
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# Models\n\nOthers.\n\n## Models that were tried\n")
    assert text.count("| resnet18 |") == 1
    assert "| resnet18 | equal |" in text


def test_the_claims_of_the_page_are_counted() -> None:
    outcomes = {"timm:a": "equal", "timm:b": "equal", "timm:c": "refused", "adversarial:d": "equal"}
    rows = [{"name": name, "source": name.partition(":")[0], "outcome": text} for name, text in outcomes.items()]
    assert claims(rows)[0].startswith("66.7 % of the third-party models are equal; of all 4 models: 0 WRONG, 0 abort, ")
    rows[-1]["outcome"] = "WRONG"
    assert "1 WRONG" in claims(rows)[0]


def test_planning_that_takes_too_long_does_not_hide_what_was_run() -> None:
    ran = {"name": "a:b", "source": "a", "outcome": "equal", "phase": "run free", "cpu_s": {"run free": 1.0}}
    row = joined(None, ran, ("run",))
    late = {"name": "a:b", "source": "a", "outcome": "timeout", "phase": "plan of 8", "cpu_s": {}, "text": "over 9 s"}
    assert joined(row, late, ("plan",))["outcome"] == "equal"
    assert joined(row, {**late, "outcome": "traceback"}, ("plan",))["outcome"] == "traceback"
    assert joined(row, {**ran, "outcome": "timeout"}, ("run",))["outcome"] == "timeout"
    both = joined(None, {**late, "parts": {"run": row["parts"]["run"]}}, ("plan", "run"))
    assert (both["outcome"], both["parts"]["plan"]["outcome"]) == ("equal", "timeout")


def trace() -> Trace:
    weight = torch.tensor([1.0, -2.0])
    return Trace([2.0], [{"w": weight * 0.1}], {"w": weight, "count": torch.tensor(3)})


def test_the_comparison_sees_each_thing_that_differs() -> None:
    assert difference(trace(), [trace(), trace()]) == ""
    for change in (
        Trace([2.001], trace().gradients, trace().state),
        Trace([2.0], [{"w": torch.tensor([0.1, -0.2002])}], trace().state),
        Trace([2.0], [{}], trace().state),
        Trace([2.0], [trace().gradients[0] | {"frozen": torch.ones(1)}], trace().state),
        Trace([2.0], trace().gradients, trace().state | {"count": torch.tensor(4)}),
        Trace([2.0], trace().gradients, trace().state | {"w": torch.tensor([1.0, -2.001])}),
        Trace([2.0], trace().gradients, {"w": trace().state["w"]}),
        Trace([float("nan")], trace().gradients, trace().state),
    ):
        assert difference(trace(), [change])
