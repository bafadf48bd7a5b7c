"""The page: one file, no network, names as text; what a browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.explain.recipes import Baseline
from meshwright.models.moe import MoE
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.report.data import page_data
from meshwright.report.page import page, write_report

EVIL = "</script><script>document.title='owned'</script>"
OTHERS = (Baseline("DDP", (), 0.5, 1 << 20, True), Baseline("HSDP", why="one host"))

PRESSES = """<script>
const chain = document.querySelectorAll(".chain button"), gantt = document.querySelector(".gantt");
const before = parseFloat(gantt.firstChild.style.width);
chain[chain.length - 1].click();
gantt.dispatchEvent(new KeyboardEvent("keydown", { key: "+" }));
document.querySelector(".axes button").click();
document.body.dataset.pressed = JSON.stringify({
  layer: document.querySelector("h3").textContent,
  pressed: document.querySelectorAll('.chain [aria-pressed="true"]').length,
  wider: parseFloat(gantt.firstChild.style.width) / before,
  lit: document.querySelector(".grid").querySelectorAll(".lit").length,
});
</script>"""
"""What a reader does: opens the last layer, zooms by key, lights up an axis."""


def browse(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "browsed.html"
    path.write_text(text)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def planned() -> tuple[Plan, Program]:
    program = capture(*small_model("gpt"))
    plan = make_plan(program, load_cluster("local:4"), pins=("pp=2", "dp=2", "microbatch=2", "schedule=1f1b"))
    return replace(plan, model=EVIL), program


def embedded(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    loaded: dict[str, object] = json.loads(found[1])
    return loaded


def test_the_page_is_one_file_that_asks_for_nothing(planned: tuple[Plan, Program], tmp_path: Path) -> None:
    plan, program = planned
    path = tmp_path / "plan.html"
    write_report(plan, path, program, others=OTHERS)
    text = path.read_text()
    assert len(text) < 200_000

    class Links(HTMLParser):
        found: ClassVar[list[str]] = []

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            self.found += [f"{tag} {name}" for name, _ in attributes if name in ("src", "href", "action")]

    reader = Links()
    reader.feed(text)
    assert reader.found == []
    assert EVIL not in text
    assert embedded(text)["title"] == EVIL  # as text


def test_the_page_says_what_the_plan_says(planned: tuple[Plan, Program]) -> None:
    plan, program = planned
    data = page_data(plan, program)
    assert data["step_s"] == plan.predicted.step_s
    assert [stage["layers"] for stage in data["stages"]] == [[[s.first, s.end] for s in group] for group in plan.groups]
    assert [layer["name"] for layer in data["layers"]] == [segment.name for segment in program.segments]
    for layer, index in zip(data["layers"], plan.segments, strict=True):
        ops = data["kinds"][layer["kind"]]["ops"]
        assert {op["name"] for op in ops} == set(plan.choices[index].strategies)


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no `chromium` here: the page was not opened in a browser")
def test_a_browser_draws_it(planned: tuple[Plan, Program], tmp_path: Path) -> None:
    plan, program = planned
    path = tmp_path / "plan.html"
    write_report(plan, path, program, others=OTHERS, search=[(0.5, "2 stages: 1 ms")], against={"b.json": plan})
    done = browse(path.read_text() + PRESSES, tmp_path)
    assert "CONSOLE" not in done.stderr
    for title in (
        "Memory at the peak",
        "Where the time goes",
        "Against the recipes",
        "Against another plan",
        "How it was found",
        "Where each figure comes from",
        "Who works with whom",
        "The schedule",
    ):
        assert title in done.stdout
    found = re.search(r'data-pressed="(.*?)"', done.stdout)
    assert found
    last = program.segments[-1].name
    assert json.loads(found[1].replace("&quot;", '"')) == {"layer": last, "pressed": 1, "wider": 2, "lit": 2}
    assert "pipeline parallel over 2 stages" in done.stdout
    assert "<title>owned</title>" not in done.stdout


OVERLAPS = """<script>
const boxes = [...document.querySelectorAll(".spot rect")].map((one) => one.getBoundingClientRect());
const pairs = boxes.flatMap((a, place) => boxes.slice(place + 1).filter((b) =>
  a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
const marks = [...document.querySelectorAll(".spot text")].map((one) => one.textContent);
document.body.dataset.pressed = JSON.stringify({ marks, overlaps: pairs.length });
</script>"""


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no `chromium` here: the page was not opened in a browser")
def test_recipes_that_lie_together_can_be_told_apart(planned: tuple[Plan, Program], tmp_path: Path) -> None:
    """Marks do not cover each other; recipes on the same spot share one."""
    plan, _ = planned
    step_s, peak_bytes = plan.predicted.step_s, plan.predicted.peak_bytes
    near = [Baseline(f"near {n}", (), step_s * (1 + n / 100), peak_bytes + n, True) for n in range(8)]
    same = [Baseline(f"same {n}", (), 2 * step_s, 2 * peak_bytes, True) for n in range(3)]
    data = page_data(plan, others=[*near, *same]) | {"launch": "", "limit_bytes": 4 * peak_bytes}
    done = browse(page(data) + OVERLAPS, tmp_path)
    assert "CONSOLE" not in done.stderr
    found = re.search(r'data-pressed="(.*?)"', done.stdout)
    assert found
    shown = json.loads(found[1].replace("&quot;", '"'))
    assert shown["overlaps"] == 0
    assert "9, 10, 11" in shown["marks"]
    assert sorted(", ".join(shown["marks"]).split(", ")) == sorted(["★", *map(str, range(1, 12))])


def test_without_a_program_the_page_is_smaller(planned: tuple[Plan, Program]) -> None:
    data = page_data(planned[0])
    assert data["layers"] == []
    assert data["timeline"] is None
    assert "headline" in embedded(page(data | {"launch": ""}))


KINDS = {
    "one device": ("gpt", "local:1", (), "one device"),
    "ZeRO": ("gpt", "local:2", ("pp=1", "dp=2", "zero=3"), "FSDP (ZeRO-3) over 2"),
    "experts": ("moe", "local:2", ("pp=1",), "over 2"),
}


@pytest.mark.full
@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no `chromium` here: the page was not opened in a browser")
@pytest.mark.parametrize("kind", KINDS)
def test_a_browser_draws_other_kinds_of_plans(kind: str, tmp_path: Path) -> None:
    name, cluster, pins, said = KINDS[kind]
    model, batch = small_model("gpt")
    program = capture(MoE(1, 48, 6, 6, 48, 96, 4, 2, True, False, 1e4) if name == "moe" else model, batch)
    plan = make_plan(program, load_cluster(cluster), pins=pins)
    write_report(plan, tmp_path / "plan.html", program, others=OTHERS)
    done = browse((tmp_path / "plan.html").read_text(), tmp_path)
    assert "CONSOLE" not in done.stderr
    assert said in done.stdout
    for title in ("Memory at the peak", "Where the time goes", "Against the recipes", "The schedule"):
        assert title in done.stdout
    assert all(segment.name in done.stdout for segment in program.segments)
