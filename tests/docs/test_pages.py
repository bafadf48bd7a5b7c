"""What pages of the docs say of the code is what the code has."""

from __future__ import annotations

import re
import runpy
import typing
from importlib.resources import files
from pathlib import Path

from meshwright.capture import Precision
from meshwright.capture.optimizer import STATES
from meshwright.models.families import FAMILIES
from meshwright.models.named import NAMED
from meshwright.planner.effort import HEADROOM
from meshwright.schedule import ORDERS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_pictures_are_what_the_script_draws() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures.py"))["PICTURES"]
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == set(drawn)
    for name, draw in drawn.items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text() == draw(), "run python docs/pictures.py"


def test_pictures_that_pages_show_are_there() -> None:
    for page in DOCS.glob("*.md"):
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
            assert alt, page
            assert (DOCS / target).is_file(), (page, target)


def test_limits_are_those_of_the_code() -> None:
    oldest, beyond = re.findall(r"torch>=([\d.]+),<2\.(\d+)", (ROOT / "pyproject.toml").read_text())[0]
    profiles = [one for one in files("meshwright.cluster").joinpath("profiles").iterdir() if one.name.endswith(".json")]
    rows = {
        "torch": f"{oldest} to 2.{int(beyond) - 1}",
        "precision": ", ".join(typing.get_args(Precision)),
        "optimizers that are planned for": ", ".join(STATES),
        "pipeline schedules": ", ".join([*ORDERS, "searched"]),
        "model families by name": f"{len(FAMILIES)}, with {len(NAMED)} sizes",
        "device profiles that come with it": str(len(profiles)),
        "headroom without a memory limit": f"{HEADROOM:.0%}".replace("%", " %"),
    }
    page = (DOCS / "limits.md").read_text()
    for name, value in rows.items():
        assert f"| {name} | {value} |" in page


def test_sections_of_a_report_are_explained() -> None:
    parts = files("meshwright.report").joinpath("parts")
    scripts = "".join(one.read_text() for one in parts.iterdir() if one.name.endswith(".js"))
    sections = set(re.findall(r'card\("([^"]+)"', scripts))
    page = (DOCS / "reading_a_report.md").read_text()
    assert len(sections) >= 8
    assert [name for name in sections if f"| {name} |" not in page] == []
