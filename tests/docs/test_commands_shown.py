"""Commands that README, SKILL.md and the docs show are ones that the command line takes, with these options."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from meshwright.cli import COMMANDS, main, parser_for

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "SKILL.md", *sorted((ROOT / "docs").glob("*.md"))]


def shown(text: str) -> list[str]:
    """Lines of blocks, and cells of tables, that begin with `meshwright COMMAND`; comments and `...` aside."""
    blocks = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", text, re.S | re.M))
    lines = re.findall(r"^(?:\$ )?meshwright [^\n]*", blocks, re.M) + re.findall(r"\| `(meshwright [^`\n]*)` \|", text)
    found = [line.removeprefix("$ ").split("  #")[0].split(" #")[0].strip() for line in lines]
    return [line for line in found if "..." not in line and "|" not in line and line.split()[1] in COMMANDS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_shown_can_be_given(page: Path) -> None:
    for line in shown(page.read_text()):
        if line.split()[1].isupper() or line.split()[1:] == ["plan"] or re.search(r"[A-Z]{4,}|->|`", line):
            continue  # places for one's own words
        words = shlex.split(line.split(" > ")[0].split(" && ")[0])[1:]
        try:
            parsed, more = parser_for(words[0]).parse_known_args(words)
        except SystemExit as error:
            raise AssertionError(f"{page.name}: {line}") from error
        assert not more or "names" in parsed, f"{page.name}: {line}: {more}"


@pytest.mark.full
def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its list of commands, but for those of a large model."""
    monkeypatch.chdir(tmp_path)
    block = next(
        one for one in re.findall(r"^```[a-z]*\n(.*?)^```", README.read_text(), re.S | re.M) if "frontier" in one
    )
    lines = [line for line in shown(f"```\n{block}```") if "llama3-8b" not in line]
    assert len(lines) >= 8
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line
        if " -o plan.json" in line:
            shutil.copy("plan.json", "other.json")
    assert {path.name for path in tmp_path.iterdir()} >= {"plan.json", "both.html", "t.json.gz", "m.pickle"}


def test_readme_shows_many() -> None:
    assert len(shown(README.read_text())) >= 14
