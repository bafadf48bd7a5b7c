"""Commands that README, SKILL.md and the docs show are ones that the command line takes, with these options."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import COMMANDS, main, parser_for
from meshwright.cli.parser import CommandLineError

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "SKILL.md", *sorted((ROOT / "docs").glob("*.md"))]


def shown(page: Path) -> list[str]:
    """Lines of blocks and cells of tables that begin with `meshwright COMMAND`; of README's table all that is quoted.

    Comments and `...` aside.
    """
    text = page.read_text()
    blocks = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", text, re.S | re.M))
    rows = "\n".join(re.findall(r"^\|.*", text, re.M))
    lines = re.findall(r"^(?:\$ )?meshwright [^\n]*", blocks, re.M)
    lines += re.findall(r"`(meshwright [^`\n]*)`" if page == README else r"\| `(meshwright [^`\n]*)` \|", rows)
    found = [line.removeprefix("$ ").split("  #")[0].split(" #")[0].strip() for line in lines]
    return [line for line in found if "..." not in line and "|" not in line and line.split()[1] in COMMANDS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_shown_can_be_given(page: Path) -> None:
    for line in shown(page):
        if line.split()[1].isupper() or line.split()[1:] == ["plan"] or re.search(r"[A-Z]{4,}|->|`", line):
            continue  # places for one's own words
        words = shlex.split(line.split(" > ")[0].split(" && ")[0])[1:]
        try:
            parsed, more = parser_for(words[0]).parse_known_args(words)
        except CommandLineError as error:
            raise AssertionError(f"{page.name}: {line}") from error
        assert not more or "names" in parsed, f"{page.name}: {line}: {more}"


SMALL = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"
SMALLER = {
    "train gpt --seq 256": f"train {SMALL}",
    "--steps 200": "--steps 2",
    "--steps 400": "--steps 4",
    "--every 50": "--every 2",
}
"""What takes hours on a laptop is run with a smaller model and fewer steps."""
ELSEWHERE = {"calibrate": "tests/cluster/test_calibrate.py", "trace.json.gz": "tests/cli/test_compare.py"}
"""Commands with these words are run by other tests, which have what they need."""
OWN = """
import torch

def function():
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    return model, (torch.randn(32, 64),), lambda y, x: (y - x).square().mean()
"""
COMMANDS_RUN = [
    pytest.param(line, id=f"{page.stem}: {line.removeprefix('meshwright ')[:60]}")
    for page in PAGES
    if page.stem != "troubleshooting"  # has a test of its own
    for line in dict.fromkeys(line.split("   ")[0] for line in shown(page))
    if not any(word in line for word in ELSEWHERE) and line != "meshwright plan"
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files that the pages speak of."""
    made = tmp_path_factory.mktemp("shown")
    for name in ("plan", "other", "a", "b"):
        words = ["plan", SMALL, "--global-batch", "16", "--cluster", "local:4", "--quiet"]
        assert main([*words, "-o", str(made / f"{name}.json"), *(["--pin", "tp=2"] if name in "ob" else [])]) == 0
    cluster = subprocess.run(
        [sys.executable, "-m", "meshwright", "cluster", "show", "h100:8", "--toml"], capture_output=True, check=True
    )
    (made / "file.py").write_text(OWN)
    (made / "mine.toml").write_bytes(cluster.stdout)
    return made


@pytest.mark.full
@pytest.mark.parametrize("line", COMMANDS_RUN)
def test_commands_shown_run(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the pages: some go on with what others have written."""
    monkeypatch.chdir(folder)
    for given, smaller in SMALLER.items():
        line = line.replace(given, smaller)
    assert main(shlex.split(line.partition(" > ")[0])[1:]) == 0


@pytest.mark.full
@pytest.mark.parametrize("page", [README], ids=lambda page: page.name)
def test_answers_shown_are_what_is_printed(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answered = re.findall(r"^\$ meshwright ([^\n]*)\n((?:[^$`\n][^\n]*\n)+)", page.read_text(), re.M)
    assert answered
    for words, said in answered:
        assert main(shlex.split(words)) == 0
        assert capsys.readouterr().out.startswith(said)


def test_readme_shows_many() -> None:
    assert len(shown(README)) >= 14
