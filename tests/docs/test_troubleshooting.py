"""docs/troubleshooting.md: every mistake is made, and answered with what stands there."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import meshwright as mw
from meshwright.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
SMALL = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"
CASES = re.findall(r"```console\n\$ meshwright ([^\n]*)\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("mistakes")
    words = ["plan", SMALL, "--cluster", "local:2", "--pin", "pp=1", "--pin", "dp=2", "--quiet"]
    assert main([*words, "-o", str(made / "plan.json")]) == 0
    (made / "notes.json").write_text('{"a": 1}\n')
    (made / "mine.py").write_text("def model():\n    return 3\n")
    before = Path.cwd()
    os.chdir(made)
    yield made
    os.chdir(before)


def alike(text: str) -> str:
    return ".*".join(map(re.escape, text.split("...")))


def test_there_are_more_than_twenty() -> None:
    assert len(CASES) >= 25


@pytest.mark.parametrize(
    ("words", "said"),
    [pytest.param(*case, marks=pytest.mark.full if "64KiB" in case[0] else ()) for case in CASES],
    ids=[case[0][:40] for case in CASES],
)
def test_a_mistake_is_answered(words: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == 2
    found = capsys.readouterr().err
    message = found[found.index("meshwright: ") :].rstrip()
    assert re.fullmatch(alike(said.rstrip()), message, re.S), message
    assert "\n  to do: " in message


def test_a_model_without_a_loss() -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.plan(nn.Linear(8, 8), (torch.zeros(4, 8),))
    assert str(caught.value) in PAGE
